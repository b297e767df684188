package bundle

import (
	"fmt"
	"regexp"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

var (
	safeName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	modelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,190}$`)
	// thinkingLevels are Pi's.
	thinkingLevels = []string{"off", "minimal", "low", "medium", "high", "xhigh"}
)

// PiCommand returns the arguments that start Pi: each may be empty. It returns
// an error of code invalid_argument or invalid_attachment for a value that
// could be taken for something else.
func PiCommand(session, model, thinking string, extensions []string) ([]string, error) {
	// Pi as the first process would leave zombies; tini reaps them.
	args := []string{"/usr/bin/tini", "-s", "--", "/usr/local/bin/pi", "--mode", "rpc"}
	if session != "" {
		if !safeName.MatchString(session) {
			return nil, invalid("agentSession", session, "letters, digits, dot, underscore and hyphen, at most 64, beginning with a letter or digit")
		}
		args = append(args, "--session-id", session)
	}
	if model != "" {
		if !modelName.MatchString(model) {
			return nil, invalid("model", model, "PROVIDER/MODEL")
		}
		args = append(args, "--model", model)
	}
	if thinking != "" {
		if !slices.Contains(thinkingLevels, thinking) {
			return nil, invalid("thinking", thinking, fmt.Sprintf("one of %v", thinkingLevels))
		}
		args = append(args, "--thinking", thinking)
	}
	for _, name := range extensions {
		if !safeName.MatchString(name) {
			return nil, &wire.Error{
				Code:    wire.CodeInvalidAttachment,
				Message: fmt.Sprintf("the attachment name %.64q is not allowed", name),
				Advice:  "use letters, digits, dot, underscore and hyphen, at most 64, beginning with a letter or digit",
			}
		}
		args = append(args, "--extension", AttachmentsDir+"/"+name)
	}
	return args, nil
}

func invalid(field, value, form string) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInvalidArgument,
		Message: fmt.Sprintf("%s %.64q is not allowed", field, value),
		Advice:  "it must be " + form,
	}
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
