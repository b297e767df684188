package seccomp

// Native is the architecture that the program was built for.
var Native = AMD64
