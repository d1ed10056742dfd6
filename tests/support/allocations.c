/* Memory that is refused on purpose: see allocations.h. */
#include "allocations.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_reallocarray(void *memory, size_t n, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
FILE *__real_open_memstream(char **text, size_t *size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t n, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
FILE *__wrap_open_memstream(char **text, size_t *size);
int __wrap_asprintf(char **ret, const char *format, ...) __attribute__((format(printf, 2, 3)));

static atomic_long count, fail_at;
static atomic_bool paused;

void allocations_fail_at(long at)
{
	fail_at = at;
	count = 0;
}

void allocations_count(bool on)
{
	paused = !on;
}

bool allocations_failed(void)
{
	return fail_at > 0 && count >= fail_at;
}

static bool fails(void)
{
	if (paused || ++count != fail_at)
		return false;
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
	return fails() ? NULL : __real_realloc(memory, size);
}

void *__wrap_reallocarray(void *memory, size_t n, size_t size)
{
	return fails() ? NULL : __real_reallocarray(memory, n, size);
}

char *__wrap_strdup(const char *text)
{
	return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
	return fails() ? NULL : __real_strndup(text, size);
}

FILE *__wrap_open_memstream(char **text, size_t *size)
{
	return fails() ? NULL : __real_open_memstream(text, size);
}

int __wrap_asprintf(char **ret, const char *format, ...)
{
	va_list arguments;
	int r;

	if (fails()) {
		*ret = NULL;
		return -1;
	}
	va_start(arguments, format);
	r = vasprintf(ret, format, arguments);
	va_end(arguments);
	return r;
}

/* -- programs that are not a test's own ----------------------------------------------------------- */

static void tell(void)
{
	FILE *file = fopen(getenv("LEASE_TEST_ALLOCATIONS"), "w");

	if (!file)
		return;
	fprintf(file, "%ld", (long)count);
	fclose(file);
}

__attribute__((constructor)) static void begin(void)
{
	const char *at = getenv("LEASE_TEST_FAIL_ALLOCATION");

	if (at)
		allocations_fail_at(atol(at));
	if (getenv("LEASE_TEST_ALLOCATIONS"))
		atexit(tell);
}
