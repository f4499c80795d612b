package launch

// Order tells the program that prints what to print: lines of 100 bytes on standard error.
type Order struct {
	// JSON are lines as hclog and others print them; else they are text.
	JSON bool
	// Lines is how many, PerWrite how many of them with one call of write(2).
	Lines, PerWrite int
	// PerMillisecond is how many are printed in a millisecond; zero is as many as can be.
	PerMillisecond int
}

// Printed is what the program that prints noticed of it.
type Printed struct {
	Began int64 // the first write, in nanoseconds of proc.Now
	// Worst is the longest call of write(2), and WorstFull the longest of those that found the pipe full, in nanoseconds. The former
	// contains what the writer waited for a processor.
	Worst, WorstFull int64
	// Full is how many found the pipe full.
	Full int
}
