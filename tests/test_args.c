/* common/args: strict numbers, lists and ranges; wrong usage exits with 2 and one line. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/args.h"
#include "common/blas.h"
#include "common/run.h"

static kvd_err err;

static void test_sizes(void **state)
{
    (void)state;
    size_t n = 7;
    assert_int_equal(kvd_arg_size("--tokens", "4096", 1, 5000, &n, &err), 0);
    assert_int_equal(n, 4096);
    static const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "0x10", "1e3", "1.0", "one", "\xd9\xa1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvd_arg_size("--tokens", bad[i], 0, SIZE_MAX, &n, &err), -1);
        assert_non_null(strstr(err.msg, "is not a whole number"));
    }
    assert_int_equal(kvd_arg_size("--tokens", "0", 1, 10, &n, &err), -1);
    assert_string_equal(err.msg, "--tokens: '0' is not within 1 .. 10");
    assert_int_equal(kvd_arg_size("--tokens", "18446744073709551616", 0, SIZE_MAX, &n, &err), -1);
    assert_string_equal(err.msg, "--tokens: '18446744073709551616' is not within 0 .. 18446744073709551615");
    assert_int_equal(n, 4096);
    uint64_t u;
    assert_int_equal(kvd_arg_u64("--seed", "18446744073709551615", &u, &err), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(kvd_arg_u64("--seed", "18446744073709551616", &u, &err), -1);
}

static void test_doubles(void **state)
{
    (void)state;
    double v = 7;
    assert_int_equal(kvd_arg_double("-p", "2.5e-1", 0, 1, &v, &err), 0);
    assert_true(v == 0.25);
    static const char *const bad[] = {"",     " 0.5", "0.5 ", "nan", "inf", "0x1p-1",
                                      "0.5x", ".",    "1e",   "--1", "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvd_arg_double("-p", bad[i], -HUGE_VAL, HUGE_VAL, &v, &err), -1);
        assert_non_null(strstr(err.msg, "is not a number"));
    }
    assert_int_equal(kvd_arg_double("-p", "1.5", 0, 1, &v, &err), -1);
    assert_string_equal(err.msg, "-p: '1.5' is not within 0 .. 1");
    assert_int_equal(kvd_arg_double("-p", "0", 1, 1 << 20, &v, &err), -1);
    assert_string_equal(err.msg, "-p: '0' is not within 1 .. 1048576");
    assert_int_equal(kvd_arg_double("-p", "1", 0, nextafter(1, 0), &v, &err), -1);
    assert_string_equal(err.msg, "-p: '1' is not within 0 .. 0.9999999999999999");
    assert_int_equal(kvd_arg_double("-p", "1e999", -HUGE_VAL, HUGE_VAL, &v, &err), -1);
    assert_true(v == 0.25);
}

static void test_lists(void **state)
{
    (void)state;
    double *x = NULL;
    size_t n = 0, *s = NULL;
    assert_int_equal(kvd_arg_doubles("-r", "0.1,0.5,1e-3", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_true(x[0] == 0.1 && x[1] == 0.5 && x[2] == 1e-3);
    free(x);
    /* The numbers of a range are those a user would type, not sums of rounding errors. */
    assert_int_equal(kvd_arg_doubles("-r", "0:0.9:0.1", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 10);
    assert_true(x[3] == 0.3 && x[9] == 0.9);
    free(x);
    assert_int_equal(kvd_arg_doubles("-r", "0.5:0.5:1", 0, 1, &x, &n, &err), 0);
    assert_int_equal(n, 1);
    free(x);
    static const char *const bad[] = {"",        ",",         "1,",        ",1",      "1,,2",
                                      "0:1",     "0:1:0",     "0:1:-1",    "1:0:0.1", "0:1:1e-9",
                                      "0:2:0.5", "0:0.9:0.6", "0:1:0.1:2", "a:b:c"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.msg[0] = '\0';
        assert_int_equal(kvd_arg_doubles("-r", bad[i], 0, 1, &x, &n, &err), -1);
        assert_int_equal(strncmp(err.msg, "-r: ", 4), 0);
    }
    assert_int_equal(kvd_arg_sizes("--input-len", "128,1024", 1, 4096, &s, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(s[1], 1024);
    free(s);
    assert_int_equal(kvd_arg_sizes("--input-len", "128,0", 1, 4096, &s, &n, &err), -1);
    assert_string_equal(err.msg, "--input-len: '0' is not within 1 .. 4096");
    assert_int_equal(kvd_arg_sizes("--input-len", "128,64,128", 1, 4096, &s, &n, &err), -1);
    assert_string_equal(err.msg, "--input-len: 128 is given twice");
    assert_int_equal(kvd_arg_doubles("-r", "0.1,1,0.10", 0, 1, &x, &n, &err), -1);
    assert_string_equal(err.msg, "-r: 0.1 is given twice");
}

/* What follows the first 63 characters of a part is read, or the part is refused. */
static void test_long_fields(void **state)
{
    (void)state;
    enum { ZEROS = 80 };
    char text[3 * ZEROS], zeros[ZEROS + 1] = "";
    double *x;
    size_t *s, n;
    memset(zeros, '0', ZEROS);
    static const char *const form[] = {"1.%sjunk", "1.%se5", "1:1.%s5:0.5", "0.5,1.%sx"};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const char *at = strstr(form[i], "%s");
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - form[i]), form[i], zeros, at + 2);
        assert_int_equal(kvd_arg_doubles("-r", text, 0, 1e9, &x, &n, &err), -1);
        assert_non_null(strstr(err.msg, "000...' is not a number"));
    }
    snprintf(text, sizeof text, "8,%s64", zeros);
    assert_int_equal(kvd_arg_sizes("-n", text, 0, 100, &s, &n, &err), -1);
    assert_non_null(strstr(err.msg, "000...' is not a whole number"));
}

static void test_device(void **state)
{
    (void)state;
    kvd_common_options o = {.device = KVD_DEVICE_AUTO};
    assert_int_equal(kvd_device_cpu_only(&o, &err), 0);
    assert_int_equal(o.device, KVD_DEVICE_CPU);
    o.device = KVD_DEVICE_CUDA;
    assert_int_equal(kvd_device_cpu_only(&o, &err), -1);
    assert_non_null(strstr(err.msg, "--device"));
}

/* ---- whole command lines, in a child since argp exits ---- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = state->input;
    return key == ARGP_KEY_ARG || key == ARGP_KEY_INIT ? 0 : ARGP_ERR_UNKNOWN;
}

static kvd_common_options parse_here(int argc, char **argv)
{
    const struct argp argp = {
        .parser = parse, .args_doc = "IN.h5", .doc = "A test.", .children = kvd_common_options_child};
    kvd_common_options o = {.seed = 1};
    kvd_args_parse("kvdim-test", &argp, argc, argv, &o);
    return o;
}

/* Runs a command line; returns the exit status, text = both streams. */
static int run(char **argv, char *text, size_t size)
{
    int ends[2], status = 0, argc = 0;
    while (argv[argc])
        argc++;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        const kvd_common_options o = parse_here(argc, argv);
        printf("output=%s seed=%llu threads=%d device=%d quiet=%d json=%d\n", o.output ? o.output : "-",
               (unsigned long long)o.seed, o.threads, (int)o.device, o.quiet, o.json);
        fflush(stdout);
        _exit(0);
    }
    close(ends[1]);
    size_t got = 0;
    ssize_t n;
    while ((n = read(ends[0], text + got, size - 1 - got)) > 0)
        got += (size_t)n;
    text[got] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_command_line(void **state)
{
    (void)state;
    char text[8192];
    char *all[] = {"./x",         "-o",       "out.h5", "in.h5", "--seed", "18446744073709551615",
                   "--threads=3", "--device", "cpu",    "-q",    "--json", NULL};
    assert_int_equal(run(all, text, sizeof text), 0);
    assert_string_equal(text, "output=out.h5 seed=18446744073709551615 threads=3 device=1 quiet=1 json=1\n");
    char *version[] = {"./x", "--version", NULL};
    assert_int_equal(run(version, text, sizeof text), 0);
    assert_int_equal(strncmp(text, "kvdim-test ", 11), 0);
    assert_non_null(strstr(text, kvd_git_revision()));
    char *help[] = {"./x", "--help", NULL};
    assert_int_equal(run(help, text, sizeof text), 0);
    assert_non_null(strstr(text, "Usage: kvdim-test"));
    assert_non_null(strstr(text, "--device=auto|cpu|cuda"));
}

static void test_wrong_usage(void **state)
{
    (void)state;
    char text[8192];
    static const struct {
        char *option, *message;
    } wrong[] = {{"--threads=0", "kvdim-test: --threads: '0' is not within 1 .. 4096\n"},
                 {"--seed=-1", "kvdim-test: --seed: '-1' is not a whole number\n"},
                 {"--device=tpu", "kvdim-test: --device: 'tpu' is none of auto, cpu, cuda\n"},
                 {"--output=", "kvdim-test: --output: the name is empty\n"},
                 {"--nonsense", "kvdim-test: unrecognized option '--nonsense'\n"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *argv[] = {"/a/b/x", wrong[i].option, NULL};
        assert_int_equal(run(argv, text, sizeof text), 2);
        assert_int_equal(strncmp(text, wrong[i].message, strlen(wrong[i].message)), 0);
        const char *rest = text + strlen(wrong[i].message);
        assert_true(!*rest || !strncmp(rest, "Try ", 4));
    }
}

static void test_argv_keeps_its_order(void **state)
{
    (void)state;
    char *argv[] = {"x", "in.h5", "-q", "b.h5", NULL};
    (void)parse_here(4, argv);
    assert_string_equal(argv[1], "in.h5");
    assert_string_equal(argv[2], "-q");
}

static void once_and_again(void **state)
{
    (void)state;
    const char *one = NULL, *list[2];
    size_t n = 0;
    assert_int_equal(kvd_arg_once("--field", "a", &one, &err), 0);
    assert_int_equal(kvd_arg_once("--field", "b", &one, &err), -1);
    assert_non_null(strstr(err.msg, "--field"));
    assert_string_equal(one, "a");
    assert_int_equal(kvd_arg_add("--text", "a", list, &n, 2, &err), 0);
    assert_int_equal(kvd_arg_add("--text", "b", list, &n, 2, &err), 0);
    assert_int_equal(kvd_arg_add("--text", "c", list, &n, 2, &err), -1);
    assert_string_equal(err.msg, "--text: more than 2 are given");
    assert_int_equal(n, 2);
    assert_string_equal(list[1], "b");
}

int main(void)
{
    /* A program may start itself anew for better kernels (common/blas.h); argv is not this test's own. */
    setenv("OPENBLAS_CORETYPE", kvd_blas_core(), 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_long_fields), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_device),      cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_wrong_usage), cmocka_unit_test(test_argv_keeps_its_order),
        cmocka_unit_test(once_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
