#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/args.h"
#include "common/blas.h"
#include "common/device.h"
#include "common/options.h"
#include "common/run.h"
#include "unit.h"

typedef enum { RED, GREEN, BLUE } colour;
static const char *const colours[] = {"red", "green", "blue", NULL};

typedef struct {
    kvd_common_options common;
    const char *model, *text[3], *file, *label, *moments_file;
    size_t n_text, tokens, *sizes, n_sizes, called;
    int gpus;
    bool resume, moments, tokens_given, on, wanted[3];
    double share, bound, *rates;
    size_t n_rates;
    colour colour;
} config;

static int count_call(void *c, const char *text, kvd_err *err)
{
    ((config *)c)->called++;
    return strcmp(text, "bad") ? 0 : kvd_fail(err, "--call: 'bad' is bad");
}

static void print_list(void)
{
    puts("the list");
}

static const kvd_option options[] = {
    {.help = "Input"},
    {"MODEL", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(config, model), .help = "A model"},
    {"TEXT", .positional = true, .type = KVD_OPT_TEXTS, KVD_INTO_LIST(config, text, n_text),
     .requires = "text"},
    {"text", .type = KVD_OPT_TEXTS, .arg = "FILE", KVD_INTO_LIST(config, text, n_text),
     .excludes = "shape", .help = "A text"},
    {"shape", .type = KVD_OPT_TEXT, .arg = "NAME", KVD_INTO(config, file), .excludes = "MODEL",
     .help = "A shape"},
    {"label", .type = KVD_OPT_TEXT, KVD_INTO(config, label), .high = 5, .help = "A label"},
    {.help = "Method"},
    {"tokens", .type = KVD_OPT_WHOLE, KVD_INTO(config, tokens), .low = 2, .high = 1 << 20,
     .initial = "16", .unit = "tokens", KVD_GIVEN(config, tokens_given), .help = "Tokens"},
    {"gpus", .type = KVD_OPT_WHOLE, KVD_INTO(config, gpus), .low = 1, .high = 64,
     .otherwise = "all", .help = "GPUs"},
    {"share", .type = KVD_OPT_NUMBER, KVD_INTO(config, share), .high = 1, .above_low = true,
     .initial = "0.35", .help = "A share"},
    {"bound", .type = KVD_OPT_NUMBER, KVD_INTO(config, bound), .high = 1, .below_high = true,
     .requires = "share tokens", .help = "A bound"},
    {"colour", .type = KVD_OPT_WORD, .words = colours, KVD_INTO(config, colour), .initial = "green",
     .help = "A colour"},
    {"colours", .type = KVD_OPT_WORDS, .arg = "LIST", .words = colours, KVD_INTO(config, wanted),
     .initial = "blue", .help = "Colours"},
    {"switch", .type = KVD_OPT_WORD, .words = kvd_switch_words, KVD_INTO(config, on),
     .help = "On or off"},
    {"sizes", .type = KVD_OPT_WHOLES, KVD_INTO_LIST(config, sizes, n_sizes), .low = 1, .high = 9,
     .initial = "1", .help = "Sizes"},
    {"removal-rate", .type = KVD_OPT_NUMBERS, KVD_INTO_LIST(config, rates, n_rates), .high = 1,
     .below_high = true, .excludes = "sizes", .help = "Rates"},
    {"call", .type = KVD_OPT_CALL, .arg = "WORD", .call = count_call, .repeatable = true,
     .help = "A call"},
    {"moments", .type = KVD_OPT_TEXT, .arg = "FILE", .optional = true,
     KVD_INTO(config, moments_file), KVD_GIVEN(config, moments), .help = "Moments"},
    {"list", .type = KVD_OPT_PRINT, .print = print_list, .help = "Print a list"},
    {"resume", .type = KVD_OPT_FLAG, KVD_INTO(config, resume), .requires = "share",
     .excludes = "gpus colour", .help = "Continue"},
    KVD_OPTIONS_COMMON(config, "OUT.h5", "Write the result to OUT.h5"),
    {0}};

static int check_usage(void *c, kvd_err *err)
{
    return ((config *)c)->tokens == 13 ? kvd_fail(err, "13 tokens are too few") : 0;
}

static const kvd_program program = {
    .name = "kvdim-test",
    .summary = "Test the reader of command lines. The sentence is longer than a line of the help.",
    .usage = {"(MODEL | --shape NAME) -o OUT.h5 [OPTION...]", "--list"},
    .any_of = {"MODEL shape", "output"},
    .examples = {"kvdim-test model --text a-long-name-of-a-text.txt --colours red,green,blue "
                 "--removal-rate 0.1:0.9:0.1 -o out.h5"},
    .moved = "item needle",
    .moved_to = "kvdim-other",
    .options = options,
    .check = check_usage};

static kvd_err err;

enum { MOST = 32 };

static int read_line(const char *line, config *c)
{
    static char copy[1000];
    char *argv[MOST] = {(char *)(uintptr_t) "x"}, *rest = copy;
    int argc = 1;
    memset(c, 0, sizeof *c);
    err.msg[0] = '\0';
    assert_true(strlen(line) < sizeof copy);
    strcpy(copy, line);
    for (char *word; (word = strsep(&rest, " "));) {
        assert_true(argc < MOST);
        argv[argc++] = word;
    }
    return kvd_options_read(&program, argc, argv, c, &err);
}

TEST(defaults)
{
    config c;
    assert_int_equal(read_line("m -o out.h5", &c), 0);
    assert_string_equal(c.model, "m");
    assert_string_equal(c.common.output, "out.h5");
    assert_int_equal(c.common.seed, 1);
    assert_int_equal(c.tokens, 16);
    assert_false(c.tokens_given);
    assert_int_equal(c.gpus, 0);
    assert_true(c.share == 0.35 && isnan(c.bound));
    assert_int_equal(c.colour, GREEN);
    assert_true(c.wanted[BLUE] && !c.wanted[RED]);
    assert_int_equal(c.n_sizes, 1);
    assert_null(c.rates);
    assert_false(c.resume || c.moments || c.on);
    kvd_options_release(&program, &c);
    assert_null(c.sizes);
}

TEST(values)
{
    config c;
    assert_int_equal(read_line("-qoout.h5 m --text a --tokens 4096 b --gpus=2 --share 1 "
                               "--bound=0 --colour blue --colours red,green --switch on",
                               &c),
                     0);
    assert_true(c.common.quiet && c.tokens_given && c.on);
    assert_string_equal(c.common.output, "out.h5");
    assert_int_equal(c.n_text, 2);
    assert_string_equal(c.text[1], "b");
    assert_int_equal(c.tokens, 4096);
    assert_int_equal(c.gpus, 2);
    assert_true(c.share == 1 && c.bound == 0);
    assert_int_equal(c.colour, BLUE);
    assert_true(c.wanted[RED] && c.wanted[GREEN] && !c.wanted[BLUE]);
    kvd_options_release(&program, &c);
    assert_int_equal(read_line("m -o o --removal-rate 0:0.9:0.1 --call a --call b --moments "
                               "--seed 18446744073709551615 --device cpu --json",
                               &c),
                     0);
    assert_int_equal(c.n_rates, 10);
    assert_int_equal(c.called, 2);
    assert_true(c.moments && !c.moments_file && c.common.json);
    assert_true(c.common.seed == UINT64_MAX);
    assert_int_equal(c.common.device, KVD_DEVICE_CPU);
    kvd_options_release(&program, &c);
    assert_int_equal(read_line("--shape s -o o --moments=f --sizes 3,4 --resume --share 0.5", &c),
                     0);
    assert_string_equal(c.moments_file, "f");
    assert_true(c.n_sizes == 2 && c.sizes[1] == 4 && c.resume);
    kvd_options_release(&program, &c);
    assert_int_equal(read_line("m -o o --tokens 4 --tokens 5 --colour red --colour blue", &c), 0);
    assert_true(c.tokens == 5 && c.colour == BLUE);
    kvd_options_release(&program, &c);
    assert_int_equal(read_line("-o o -- --strange", &c), 0);
    assert_string_equal(c.model, "--strange");
    kvd_options_release(&program, &c);
}

TEST(refusals)
{
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"-o o", "no MODEL or --shape given; see kvdim-test --help"},
        {"m", "no -o OUT.h5 given; see kvdim-test --help"},
        {"m -o o --tokens 1", "--tokens: '1' is not within 2 .. 1048576"},
        {"m -o o --tokens 2e3", "--tokens: '2e3' is not a whole number"},
        {"m -o o --gpus 65", "--gpus: '65' is not within 1 .. 64"},
        {"m -o o --threads 0", "--threads: '0' is not within 1 .. 4096"},
        {"m -o o --seed -1", "--seed: '-1' is not a whole number"},
        {"m -o o --share 1.5", "--share: '1.5' is not within 0 .. 1"},
        {"m -o o --share 0", "--share: '0' is not above 0"},
        {"m -o o --share 0.5 --bound 1", "--bound: '1' is not below 1"},
        {"m -o o --sizes 3,10", "--sizes: '10' is not within 1 .. 9"},
        {"m -o o --sizes 3,3", "--sizes: 3 is given twice"},
        {"m -o o --removal-rate 0.5,1", "--removal-rate: 1 is not below 1"},
        {"m -o o --label abcdef", "--label: 'abcdef' has 6 bytes, at most 5 are allowed"},
        {"m -o o --label a\tb", "--label: byte 2 is the control character 9"},
        {"m -o o --label a\x7f", "--label: byte 2 is the control character 127"},
        {"m -o o --label=", "--label: the value is empty"},
        {"m --output=", "--output: the value is empty"},
        {"m -o o --colour rad", "--colour: 'rad' is none of red, green, blue; nearest: red"},
        {"m -o o --colours red,purple", "--colours: 'purple' is none of red, green, blue"},
        {"m -o o --colours red,gren", "--colours: 'gren' is none of red, green, blue; nearest: "
                                      "green"},
        {"m -o o --colours red,", "--colours: '' is none of red, green, blue"},
        {"m -o o --colours red,blue,red", "--colours: red is given twice"},
        {"m -o o --device tpu", "--device: 'tpu' is none of auto, cpu, cuda; nearest: cpu"},
        {"m -o o --call bad", "--call: 'bad' is bad"},
        {"m -o o --bound 0.5", "--bound requires --share or --tokens"},
        {"m -o o --resume", "--resume requires --share"},
        {"m -o o --resume --share 1 --gpus 1", "--resume cannot be used with --gpus"},
        {"m -o o --shape s", "--shape cannot be used with MODEL"},
        {"-o o --shape s --text t", "--text cannot be used with --shape"},
        {"m b -o o", "argument 'b' is one too many, or --text is missing"},
        {"m -o o --tokens 13", "13 tokens are too few"},
        {"m -o o --label a --label b", "--label is given twice, 'a' and 'b'"},
        {"m -o o --sizes 1,2 --sizes 3", "--sizes is given twice, '1,2' and '3'"},
        {"m -o o --output p", "--output is given twice, 'o' and 'p'"},
        {"m -o o --text a --text b c d", "TEXT: more than 3 are given"},
        {"m -o o --tokns 4", "unknown option '--tokns', nearest: --tokens; see kvdim-test --help"},
        {"m -o o --rate=4", "unknown option '--rate', nearest: --removal-rate; see kvdim-test "
                            "--help"},
        {"m -o o --colou red",
         "unknown option '--colou', nearest: --colour; see kvdim-test --help"},
        {"m -o o --entirely-else", "unknown option '--entirely-else'; see kvdim-test --help"},
        {"m -o o --MODEL x", "unknown option '--MODEL'; see kvdim-test --help"},
        {"m -o o -qx", "unknown option '-x'; see kvdim-test --help"},
        {"m -o o --needle=3",
         "kvdim-test has no option '--needle': kvdim-other has it; see kvdim-other --help"},
        {"m -o o --resume=yes", "--resume takes no value"},
        {"m -o o --tokens", "--tokens needs a value; see kvdim-test --help"},
        {"m -o", "--output needs a value; see kvdim-test --help"},
        {"m -o o --label --tokens 4", "--label needs a value, and '--tokens' is an option"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config c;
        assert_int_equal(read_line(bad[i].line, &c), -1);
        assert_string_equal(err.msg, bad[i].message);
        kvd_options_release(&program, &c);
    }
}

TEST(test_device)
{
    kvd_common_options o = {.device = KVD_DEVICE_AUTO};
    OK(kvd_device_cpu_only(&o, &err));
    assert_int_equal(o.device, KVD_DEVICE_CPU);
    o.device = KVD_DEVICE_CUDA;
    FAILS_WITH(kvd_device_cpu_only(&o, &err), "--device");
}

static int run(char **argv, char *text, size_t size)
{
    int ends[2], status = 0, argc = 0;
    while (argv[argc])
        argc++;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        static config c;
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        kvd_options_parse(&program, argc, argv, &c);
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

TEST(wrong_usage)
{
    char text[8192];
    char *unknown[] = {"/a/b/x", "--nonsense", NULL}, *bytes[] = {"x", "m", "\xff", NULL};
    assert_int_equal(run(unknown, text, sizeof text), 2);
    assert_string_equal(text, "kvdim-test: unknown option '--nonsense'; see kvdim-test --help\n");
    assert_int_equal(run(bytes, text, sizeof text), 2);
    assert_non_null(strstr(text, "kvdim-test: argument 2 is not valid UTF-8 at byte 0"));
}

TEST(help)
{
    char text[8192];
    char *version[] = {"x", "-V", NULL}, *list[] = {"x", "m", "--list", NULL};
    char *ask[] = {"x", "m", "--help", NULL};
    assert_int_equal(run(version, text, sizeof text), 0);
    assert_int_equal(strncmp(text, "kvdim-test ", 11), 0);
    assert_non_null(strstr(text, kvd_git_revision()));
    assert_int_equal(run(list, text, sizeof text), 0);
    assert_string_equal(text, "the list\n");
    assert_int_equal(run(ask, text, sizeof text), 0);
    static const char *const parts[] = {
        "Usage: kvdim-test (MODEL | --shape NAME) -o OUT.h5 [OPTION...]\n   or: kvdim-test --list\n",
        "\nInput:\n  MODEL                   A model\n",
        "      --tokens=N          Tokens (default 16 tokens)\n",
        "      --gpus=N            GPUs (1 .. 64; default: all)\n",
        "      --share=X           A share (0 < X <= 1; default 0.35)\n",
        "      --bound=X           A bound (0 <= X < 1; requires --share or --tokens)\n",
        "      --colour=red|green|blue\n                          A colour (default green)\n",
        "Colours (comma list of red, green, blue; default blue)",
        "      --text=FILE         A text (may be repeated; not with --shape)\n",
        "      --moments[=FILE]    Moments\n",
        "  -o, --output=OUT.h5     Write the result to OUT.h5\n",
        "      --device=auto|cpu|cuda\n                          Device that computes (default auto)\n",
        ("\nExample:\n  kvdim-test model --text a-long-name-of-a-text.txt --colours red,green,blue "
         "--removal-rate 0.1:0.9:0.1 -o out.h5\n")};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i]))
            fail_msg("no '%s' in:\n%s", parts[i], text);
    /* Lines of --help must be at most 80 columns wide, except example commands. */
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 80 || !strncmp(line, "  kvdim-test ", 13));
}

TEST(test_sizes)
{
    size_t n = 7;
    OK(kvd_arg_size("--tokens", "4096", 1, 5000, &n, &err));
    assert_int_equal(n, 4096);
    static const char *const bad[] = {"",     " 1",  "1 ",  "-1",  "+1",
                                      "0x10", "1e3", "1.0", "one", "\xd9\xa1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS_WITH(kvd_arg_size("--tokens", bad[i], 0, SIZE_MAX, &n, &err),
                   "is not a whole number");
    }
    FAILS(kvd_arg_size("--tokens", "0", 1, 10, &n, &err), "--tokens: '0' is not within 1 .. 10");
    FAILS(kvd_arg_size("--tokens", "18446744073709551616", 0, SIZE_MAX, &n, &err),
          "--tokens: '18446744073709551616' is not within 0 .. 18446744073709551615");
    assert_int_equal(n, 4096);
}

TEST(test_doubles)
{
    double v = 7;
    OK(kvd_arg_double("-p", "2.5e-1", 0, 1, &v, &err));
    assert_true(v == 0.25);
    static const char *const bad[] = {"",     " 0.5", "0.5 ", "nan", "inf", "0x1p-1",
                                      "0.5x", ".",    "1e",   "--1", "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS_WITH(kvd_arg_double("-p", bad[i], -HUGE_VAL, HUGE_VAL, &v, &err), "is not a number");
    }
    FAILS(kvd_arg_double("-p", "1.5", 0, 1, &v, &err), "-p: '1.5' is not within 0 .. 1");
    FAILS(kvd_arg_double("-p", "0", 1, 1 << 20, &v, &err), "-p: '0' is not within 1 .. 1048576");
    FAILS(kvd_arg_double("-p", "1", 0, nextafter(1, 0), &v, &err),
          "-p: '1' is not within 0 .. 0.9999999999999999");
    assert_int_equal(kvd_arg_double("-p", "1e999", -HUGE_VAL, HUGE_VAL, &v, &err), -1);
    assert_true(v == 0.25);
}

TEST(test_lists)
{
    double *x = NULL;
    size_t n = 0, *s = NULL;
    OK(kvd_arg_doubles("-r", "0.1,0.5,1e-3", 0, 1, &x, &n, &err));
    assert_int_equal(n, 3);
    assert_true(x[0] == 0.1 && x[1] == 0.5 && x[2] == 1e-3);
    free(x);
    OK(kvd_arg_doubles("-r", "0:0.9:0.1", 0, 1, &x, &n, &err));
    assert_int_equal(n, 10);
    assert_true(x[3] == 0.3 && x[9] == 0.9);
    free(x);
    OK(kvd_arg_doubles("-r", "0.5:0.5:1", 0, 1, &x, &n, &err));
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
    OK(kvd_arg_sizes("--input-len", "128,1024", 1, 4096, &s, &n, &err));
    assert_int_equal(n, 2);
    assert_int_equal(s[1], 1024);
    free(s);
    FAILS(kvd_arg_sizes("--input-len", "128,0", 1, 4096, &s, &n, &err),
          "--input-len: '0' is not within 1 .. 4096");
    FAILS(kvd_arg_sizes("--input-len", "128,64,128", 1, 4096, &s, &n, &err),
          "--input-len: 128 is given twice");
    FAILS(kvd_arg_doubles("-r", "0.1,1,0.10", 0, 1, &x, &n, &err), "-r: 0.1 is given twice");
}

TEST(test_long_fields)
{
    enum { ZEROS = 80 };
    char text[3 * ZEROS], zeros[ZEROS + 1] = "";
    double *x;
    size_t *s, n;
    memset(zeros, '0', ZEROS);
    static const char *const form[] = {"1.%sjunk", "1.%se5", "1:1.%s5:0.5", "0.5,1.%sx"};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const char *at = strstr(form[i], "%s");
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - form[i]), form[i], zeros, at + 2);
        FAILS_WITH(kvd_arg_doubles("-r", text, 0, 1e9, &x, &n, &err), "000...' is not a number");
    }
    snprintf(text, sizeof text, "8,%s64", zeros);
    FAILS_WITH(kvd_arg_sizes("-n", text, 0, 100, &s, &n, &err), "000...' is not a whole number");
}

int main(void)
{
    /* Child programs inherit this variable, which OpenBLAS reads when it is loaded. */
    setenv("OPENBLAS_CORETYPE", kvd_blas_core(), 0);
    return unit_run(NULL, NULL);
}
