/*
 * The fuzz targets. Each takes any bytes and returns 0; what is wrong ends the process (a crash, a
 * sanitizer, an assertion). libfuzzer.c hands them to libFuzzer (`make fuzz`), test_corpora.c
 * replays the corpora that are kept (`make check`).
 *
 * What a target promises beyond not crashing is asserted in it, and said at its head.
 */
#ifndef LEASE_FUZZ_H
#define LEASE_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int fuzz_target(const uint8_t *data, size_t size);

fuzz_target fuzz_config; /* the reader of the daemon's YAML */
fuzz_target fuzz_results; /* a server's answers to the library */
fuzz_target fuzz_arguments; /* leasectl's command line */
fuzz_target fuzz_text; /* what comes out: JSON, escaped text, durations */

/* assert that no flag of a build takes away */
#define must(condition)                                                                            \
	((condition) ? (void)0                                                                     \
		     : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition),    \
			abort()))

#endif
