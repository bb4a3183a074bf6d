/*
 * Parses command lines that are described by tables of options.
 *
 * A program declares every option once, as one row of a kvd_option table. The parser, the checks of
 * what an option requires or excludes, the error messages, --help and the man page come from that
 * table. If a number or word is given twice, the last value counts, so that changes can be appended
 * to a command. A text or list that is given twice is an error, because the first would be ignored.
 *
 * static const kvd_option options[] = {
 *     {.help = "Input"},
 *     {"MODEL", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(config, model)},
 *     {"tokens", .type = KVD_OPT_WHOLE, KVD_INTO(config, tokens), .low = 2, .otherwise = "all",
 *      .help = "Number of tokens to read"},
 *     KVD_OPTIONS_COMMON(config, "FILE", "Write the result to FILE, whole or not at all"),
 *     {0}};
 */
#ifndef KVD_COMMON_OPTIONS_H
#define KVD_COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/args.h"
#include "common/err.h"

typedef enum {
    /* A heading of --help, not an option; the heading is the field `help`. */
    KVD_OPT_GROUP,
    KVD_OPT_FLAG, /* option without a value; sets a bool of the configuration to true */
    /* Option with a whole number within `low` .. `high`, stored in an integer of 4 or 8 bytes. */
    KVD_OPT_WHOLE,
    /* Option with a number within `low` .. `high`, stored in a double; NaN when not given. */
    KVD_OPT_NUMBER,
    KVD_OPT_TEXT, /* option with a text of at least one byte, stored in a const char * */
    /*
     * Option with a text that may be repeated; each text is appended to an array of const char *.
     */
    KVD_OPT_TEXTS,
    /*
     * Option with one word of the list `words`, stored as its index in a bool, an int or an
     * enumeration.
     */
    KVD_OPT_WORD,
    /*
     * Option with words of the list `words`, separated by commas. Element i of an array of bool is
     * set to true for word i.
     */
    KVD_OPT_WORDS,
    /* Option with whole numbers separated by commas, stored in an allocated array of size_t. */
    KVD_OPT_WHOLES,
    /*
     * Option with numbers separated by commas, or FIRST:LAST:STEP, in an allocated array of
     * double.
     */
    KVD_OPT_NUMBERS,
    KVD_OPT_CALL, /* option with any value; its function `call` parses the value */
    /* Option without a value; its function `print` writes to stdout and the program ends. */
    KVD_OPT_PRINT
} kvd_option_type;

typedef struct {
    const char *name; /* long name of the option, or name of a positional argument */
    char letter;      /* one-letter name of the option; 0 means none */
    kvd_option_type type;
    const char *arg; /* name of the option's value in --help; NULL: derived from the type */
    /*
     * Offset and size of the field that receives the value, in the program's configuration
     * structure; KVD_INTO fills both.
     */
    size_t at, size;
    /* Offset, in the configuration, of the size_t that counts the elements of a list. */
    size_t count;
    /*
     * Offset, in the configuration, of a bool that is set to true if the option was given; 0 means
     * none.
     */
    size_t given;
    /*
     * Offset, in the configuration, of a const char * that receives the value as typed; 0 means
     * none.
     */
    size_t typed;
    /*
     * Range of allowed numbers; if both are 0, any number is allowed. For KVD_OPT_TEXT, `high` is
     * the largest length of the text in bytes. For KVD_OPT_TEXTS and KVD_OPT_WORDS, `high` is
     * unused.
     */
    double low, high;
    /* True if the bound `low` or `high` itself is not an allowed value. */
    bool above_low, below_high;
    /*
     * True for an argument without a name; positional arguments are read in the order of the rows.
     */
    bool positional;
    /*
     * True if the option's value may be left out. The forms are then --name and --name=VALUE, not
     * --name VALUE.
     */
    bool optional;
    /* True if an option of type KVD_OPT_CALL may be repeated; KVD_OPT_TEXTS always may. */
    bool repeatable;
    /* True if the option is parsed before all others, wherever it is in the command line. */
    bool early;
    /*
     * Words that an option of type KVD_OPT_WORD or KVD_OPT_WORDS accepts. The list ends with NULL.
     * For KVD_OPT_WORDS it also ends after as many words as the array of bool that stores the
     * option has elements. An empty word is skipped.
     */
    const char *const *words;
    const char *initial;   /* default value; parsed like a given value, before the command line */
    const char *otherwise; /* default in words for --help, if no single value describes it */
    const char *unit;      /* unit of the default, printed after it in --help: "tokens" */
    /* Names of options; the user must give one of them together with this option. */
    const char *requires;
    /* Names of options that the user must not give together with this option. */
    const char *excludes;
    int (*call)(void *config, const char *text, kvd_err *err);
    void (*print)(void);
    const char *help;
} kvd_option;

/*
 * Initialisers of a row of the option table. KVD_INTO(T, f) stores the option's value in field `f`
 * of the configuration type `T`. In KVD_INTO_LIST, field `n` receives the number of values.
 */
#define KVD_INTO(T, f)         .at = offsetof(T, f), .size = sizeof(((T *)0)->f)
#define KVD_INTO_LIST(T, f, n) KVD_INTO(T, f), .count = offsetof(T, n)
#define KVD_GIVEN(T, f)        .given = offsetof(T, f)
#define KVD_TYPED(T, f)        .typed = offsetof(T, f)

enum { KVD_OPTION_EXAMPLES = 8, KVD_OPTION_ANY_OF = 8 };

typedef struct {
    const char *name;    /* name of the program: "kvdim-collect" */
    const char *summary; /* first paragraph of --help: the purpose of the program */
    /* Forms of the command after the program's name in --help, one per line. */
    const char *usage[4];
    /* Sets of option names; of each set the user must give at least one option. */
    const char *any_of[KVD_OPTION_ANY_OF];
    /* Examples in --help: whole commands, one per line. */
    const char *examples[KVD_OPTION_EXAMPLES];
    const char *notes; /* last paragraphs of --help, or NULL */
    /* Names of options that a different program has now (`moved_to`); NULL means none. */
    const char *moved;
    const char *moved_to;      /* name of the program that has the options in `moved` */
    const kvd_option *options; /* table of the program's options; its last row is {0} */
    /*
     * Function that checks what the table cannot express, such as conditions between options; NULL
     * means none. It may set fields of the configuration that follow from other fields.
     */
    int (*check)(void *config, kvd_err *err);
} kvd_program;

/*
 * Parses argv into *config, which must be zeroed except for fields without an option. Wrong usage
 * ends the program with status 2 and one line on stderr; --help, --version and KVD_OPT_PRINT end it
 * with status 0. Before parsing, OpenBLAS is started with the right kernels (common/blas.h). Texts
 * in *config point into argv.
 */
void kvd_options_parse(const kvd_program *p, int argc, char **argv, void *config);

/* Same as kvd_options_parse, but on wrong usage returns -1 and fills *err. Used by tests. */
int kvd_options_read(const kvd_program *p, int argc, char **argv, void *config, kvd_err *err);

/* Frees the allocated lists of numbers (KVD_OPT_WHOLES and KVD_OPT_NUMBERS) in *config. */
void kvd_options_release(const kvd_program *p, void *config);

/* ---- options that programs share ---- */

typedef enum { KVD_DEVICE_AUTO, KVD_DEVICE_CPU, KVD_DEVICE_CUDA } kvd_device;

typedef struct {
    const char *output; /* output file, option -o */
    uint64_t seed;      /* seed of all random choices, option --seed */
    /*
     * Number of CPU threads, option --threads; 0 until kvd_run_start sets it to all allowed cores.
     */
    int threads;
    kvd_device device; /* device that computes, option --device */
    bool quiet;        /* option -q: no progress, no summary; errors are still printed */
    bool json;         /* option --json: print one JSON object on stdout instead of the summary */
} kvd_common_options;

extern const char *const kvd_device_words[4]; /* words of --device: "auto", "cpu", "cuda" */
/* Names of number types: "f32", "f16", "bf16"; a name's index is its kvd_dtype. */
extern const char *const kvd_dtype_words[4];
/* Types that a forward pass may compute in: "f32", "bf16". */
extern const char *const kvd_compute_words[4];
/* Words of an option that is off or on: "off", "on". */
extern const char *const kvd_switch_words[3];

#define KVD_OPTION_OUTPUT(T, what, text)                                                           \
    {                                                                                              \
        "output", 'o', KVD_OPT_TEXT, what, KVD_INTO(T, common.output), .help = text                \
    }
#define KVD_OPTION_SEED(T)                                                                         \
    {                                                                                              \
        "seed", .type = KVD_OPT_WHOLE, KVD_INTO(T, common.seed), .initial = "1",                   \
                .help = "Seed of every random choice"                                              \
    }
#define KVD_OPTION_DEVICE(T)                                                                       \
    {                                                                                              \
        "device", .type = KVD_OPT_WORD, .words = kvd_device_words, KVD_INTO(T, common.device),     \
                  .initial = "auto", .help = "Device that computes"                                \
    }
#define KVD_OPTION_THREADS(T)                                                                      \
    {                                                                                              \
        "threads", .type = KVD_OPT_WHOLE, KVD_INTO(T, common.threads), .low = 1, .high = 4096,     \
                   .otherwise = "every core allowed", .help = "CPU threads"                        \
    }
#define KVD_OPTION_QUIET(T)                                                                        \
    {                                                                                              \
        "quiet", 'q', KVD_OPT_FLAG, KVD_INTO(T, common.quiet),                                     \
            .help = "No progress and no summary; errors are still printed"                         \
    }
#define KVD_OPTION_JSON(T)                                                                         \
    {                                                                                              \
        "json", .type = KVD_OPT_FLAG, KVD_INTO(T, common.json),                                    \
                .help = "Print one JSON object on stdout instead of the summary"                   \
    }
/*
 * Option table rows of all common options above, with their heading. The configuration type T must
 * have a field `common` of type kvd_common_options.
 */
#define KVD_OPTIONS_COMMON(T, what, text)                                                          \
    {.help = "Common options"}, KVD_OPTION_OUTPUT(T, what, text), KVD_OPTION_SEED(T),              \
        KVD_OPTION_THREADS(T), KVD_OPTION_DEVICE(T), KVD_OPTION_QUIET(T), KVD_OPTION_JSON(T)

/*
 * Replaces the value `auto` of --device by `cpu`, for a program that cannot use a GPU. The value
 * `cuda` is an error.
 */
int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err);

/* ---- suggestions for misspelt words ---- */

/*
 * Stores `candidate` in *nearest if it is more similar to `text` than the earlier candidates. Call
 * it once per candidate, starting with *nearest NULL and *distance 0. *nearest stays NULL if no
 * candidate is similar.
 */
void kvd_option_nearest(const char *text, const char *candidate, const char **nearest,
                        size_t *distance);

#endif
