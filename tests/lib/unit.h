/* Unit tests with cmocka: TEST(name) { ... } defines one, TEST_MAIN(set_up, tear_down) runs all. */
#ifndef KVD_TESTS_UNIT_H
#define KVD_TESTS_UNIT_H

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Checks that the call succeeds. Otherwise prints the message in `err`. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s", err.msg);                                                               \
    } while (0)

/* Checks that the call returns -1 and puts `message` into `err`. */
#define FAILS(call, message)                                                                       \
    do {                                                                                           \
        assert_int_equal(call, -1);                                                                \
        assert_string_equal(err.msg, message);                                                     \
    } while (0)

/* Checks that the message in `err` contains `text`. */
#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (!strstr(err.msg, text))                                                                \
            fail_msg("'%s' lacks '%s'", err.msg, text);                                            \
    } while (0)

/* Checks that the call returns -1 with a message in `err` that contains `part`. */
#define FAILS_WITH(call, part)                                                                     \
    do {                                                                                           \
        assert_int_equal(call, -1);                                                                \
        SAYS(part);                                                                                \
    } while (0)

/* objects to release at the end of the test, the latest first */
static struct unit_end {
    struct unit_end *earlier;
    void (*release)(void *);
    void *what;
} * unit_ends;

/* Registers release(what) to be called at the end of the test. */
static inline void unit_at_end(void (*release)(void *), void *what)
{
    struct unit_end *const e = malloc(sizeof *e);
    assert_non_null(e);
    *e = (struct unit_end){unit_ends, release, what};
    unit_ends = e;
}

/* Returns zeroed memory, which is freed at the end of the test. */
static inline void *unit_alloc(size_t bytes)
{
    void *const p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    unit_at_end(free, p);
    return p;
}

static inline void unit_write(const char *path, const void *bytes, size_t n)
{
    FILE *const f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void unit_write_text(const char *path, const char *text)
{
    unit_write(path, text, strlen(text));
}

/* Returns the n bytes of a file and a zero byte, which are freed at the end of the test. */
static inline void *unit_read(const char *path, size_t *n)
{
    FILE *const f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    char *const bytes = unit_alloc(*n + 1);
    rewind(f);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    assert_int_equal(fclose(f), 0);
    return bytes;
}

static inline char *double_quotes(const char *text)
{
    char *const s = strcpy(unit_alloc(strlen(text) + 1), text);
    for (char *p = s; (p = strchr(p, '\''));)
        *p = '"';
    return s;
}

static inline int unit_end_test(void **state)
{
    (void)state;
    while (unit_ends) {
        struct unit_end *const e = unit_ends;
        unit_ends = e->earlier;
        e->release(e->what);
        free(e);
    }
    return 0;
}

/* all tests, in the order in which their file defines them */
static struct {
    struct CMUnitTest test[192];
    int place[192]; /* __COUNTER__ where each test is defined */
    size_t n;
} unit_tests;

/* Adds a test to the list. Constructors call this function before main, in an order that is not
 * defined. */
static inline void unit_add(struct CMUnitTest added, int place)
{
    size_t i = unit_tests.n++;
    if (unit_tests.n > sizeof unit_tests.test / sizeof *unit_tests.test) {
        fprintf(stderr, "test %s: tests/lib/unit.h has room for %zu\n", added.name, i);
        exit(1);
    }
    for (; i > 0 && unit_tests.place[i - 1] > place; i--) {
        unit_tests.test[i] = unit_tests.test[i - 1];
        unit_tests.place[i] = unit_tests.place[i - 1];
    }
    added.teardown_func = unit_end_test;
    unit_tests.test[i] = added;
    unit_tests.place[i] = place;
}

#define TEST(name)                                                                                 \
    static void name(void **unused_state);                                                         \
    __attribute__((constructor)) static void name##_add(void)                                      \
    {                                                                                              \
        unit_add((struct CMUnitTest)cmocka_unit_test(name), __COUNTER__);                          \
    }                                                                                              \
    static void name(void **unused_state __attribute__((unused)))

/* Adds a test that takes a parameter, which it gets as *state. It runs after the tests without
 * parameter. */
static inline void unit_with(const char *name, CMUnitTestFunction test, const char *parameter)
{
    unit_add((struct CMUnitTest){name, test, NULL, NULL, (void *)(uintptr_t)parameter}, INT_MAX);
}

#define TEST_WITH(parameter, test) unit_with(#test " " parameter, test, parameter)

/* Runs all tests and returns how many failed. set_up and tear_down may be NULL. */
static inline int unit_run(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests("tests", unit_tests.test, unit_tests.n, set_up, tear_down);
}

#define TEST_MAIN(set_up, tear_down)                                                               \
    int main(void)                                                                                 \
    {                                                                                              \
        return unit_run(set_up, tear_down);                                                        \
    }

#endif
