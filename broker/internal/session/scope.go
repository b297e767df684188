package session

// Scope is whose sessions a request reaches. Its zero value reaches none: only
// Operator and Of make one that does, from the socket that a connection came
// in on (R12).
type Scope struct {
	operator   bool
	deployment string
}

// Operator reaches the sessions of all deployments.
func Operator() Scope { return Scope{operator: true} }

// Of reaches the sessions of one deployment. The empty id reaches none.
func Of(deployment string) Scope { return Scope{deployment: deployment} }

// IsOperator reports whether the scope is the operator's.
func (s Scope) IsOperator() bool { return s.operator }

// Deployment is the id of the one deployment, or empty.
func (s Scope) Deployment() string { return s.deployment }

// String names the scope as the audit shows it; no id has brackets.
func (s Scope) String() string {
	switch {
	case s.operator:
		return "(admin)"
	case s.deployment == "":
		return "(none)"
	}
	return s.deployment
}

func (s Scope) holds(deployment string) bool {
	return s.operator || s.deployment != "" && s.deployment == deployment
}
