package bundle

import "git.jb.codes/jb/paseo-sandbox/wire"

// PiCommand returns the arguments that start Pi for a request that is valid
// (wire.Create.Validate), as every decoded one is: each of its values stands
// directly behind its option and does not begin with a hyphen.
func PiCommand(r *wire.Create) []string {
	// Pi as the first process would leave zombies; tini reaps them.
	args := []string{"/usr/bin/tini", "-s", "--", "/usr/local/bin/pi", "--mode", "rpc"}
	option := func(name, value string) {
		if value != "" {
			args = append(args, name, value)
		}
	}
	option("--session-id", r.AgentSession)
	option("--model", r.Model)
	option("--thinking", r.Thinking)
	for _, a := range r.Attachments {
		switch a.Kind {
		case wire.AttachmentExtension:
			option("--extension", AttachmentsDir+"/"+a.Name)
		case wire.AttachmentMCPConfig:
			option("--mcp-config", AttachmentsDir+"/"+a.Name)
		}
	}
	return args
}

// PiEnv returns the whole environment of Pi.
func PiEnv() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"HOME=" + HomeDir,
		"LANG=C.UTF-8",
		"PI_CODING_AGENT_DIR=" + HomeDir + "/.pi/agent",
		"PI_CODING_AGENT_SESSION_DIR=" + HomeDir + "/.pi/sessions",
		"PI_OFFLINE=1",
		// /tmp is memory, and Pi spills long output of commands.
		"TMPDIR=" + HomeDir + "/tmp",
	}
}
