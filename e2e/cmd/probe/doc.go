// Command probe is a hostile agent. Inside a sandbox it reads one request for
// each line of standard input, tries what the request says, and answers with one
// line of JSON. It judges nothing: the test that started it does.
package main
