// Command broker-admin is for operators: it says whether everything that the
// broker needs is there, and shows and ends sessions.
package main
