/*
 * Parses command lines described by tables of kvd_option rows, which also give checks, messages,
 * --help and the man page.
 *
 * The last number or word counts; a text or list given twice is an error.
 *
 *     static const kvd_option options[] = {
 *         {.help = "Input"},
 *         {"MODEL", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(config, model)},
 *         {"tokens", .type = KVD_OPT_WHOLE, KVD_INTO(config, tokens), .low = 2,
 *          .otherwise = "all", .help = "Number of tokens to read"},
 *         KVD_OPTIONS_COMMON(config, "FILE", "Write the result to FILE, whole or not at all"),
 *         {0}};
 */
#ifndef KVD_COMMON_OPTIONS_H
#define KVD_COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/args.h"
#include "common/err.h"

typedef enum {
    /* heading of --help with text `help`, not an option */
    KVD_OPT_GROUP,
    KVD_OPT_FLAG, /* without a value; sets a bool to true */
    /* Whole number in `low` .. `high`, stored in an integer of 4 or 8 bytes. */
    KVD_OPT_WHOLE,
    /* Number in `low` .. `high`, stored in a double; NaN if not given. */
    KVD_OPT_NUMBER,
    KVD_OPT_TEXT, /* text of at least one byte, stored in a const char * */
    /* Repeatable text, appended to an array of const char *. */
    KVD_OPT_TEXTS,
    /* One word of `words`, stored as its index in a bool, int or enumeration. */
    KVD_OPT_WORD,
    /* Comma-separated words of `words`; word i sets element i of an array of bool. */
    KVD_OPT_WORDS,
    /* Comma-separated whole numbers, in an allocated array of size_t. */
    KVD_OPT_WHOLES,
    /* Comma-separated numbers or FIRST:LAST:STEP, in an allocated array of double. */
    KVD_OPT_NUMBERS,
    KVD_OPT_CALL, /* any value; the function `call` parses it */
    /* Without a value; the function `print` writes to stdout and the program ends. */
    KVD_OPT_PRINT
} kvd_option_type;

typedef struct {
    const char *name; /* long name of the option, or name of a positional argument */
    char letter;      /* one-letter name; 0 means none */
    kvd_option_type type;
    const char *arg; /* name of the value in --help; NULL: derived from the type */
    /* Offset and size of the field that receives the value (KVD_INTO). */
    size_t at, size;
    /* For a list: offset of the size_t that receives the number of elements. */
    size_t count;
    /* Offset of a bool set to true if the option was given; 0 means none. */
    size_t given;
    /* Offset of a const char * that receives the value as typed; 0 means none. */
    size_t typed;
    /*
     * Range of numbers; both 0: any. KVD_OPT_TEXT with high > 0: a name of at most `high` bytes
     * without control characters.
     */
    double low, high;
    /* True if `low` or `high` itself is not allowed. */
    bool above_low, below_high;
    /* True for an argument without a name; assigned in the order of the table. */
    bool positional;
    /* True if the value may be left out: --name or --name=VALUE, not --name VALUE. */
    bool optional;
    /* True if an option of type KVD_OPT_CALL may be repeated. */
    bool repeatable;
    /* True if the option is parsed before all others. */
    bool early;
    /*
     * Accepted words, ended by NULL; for KVD_OPT_WORDS at most the length of the bool array. An
     * empty word is skipped.
     */
    const char *const *words;
    const char *initial;   /* default value, parsed like a value on the command line */
    const char *otherwise; /* description of the default for --help */
    const char *unit;      /* unit of the default in --help: "tokens" */
    /* Options separated by spaces, one of which must be given with this option. */
    const char *requires;
    /* Options that must not be given together with this option. */
    const char *excludes;
    int (*call)(void *config, const char *text, kvd_err *err);
    void (*print)(void);
    const char *help;
} kvd_option;

/*
 * Initialisers of a row: KVD_INTO(T, f) stores the value in field `f` of configuration type `T`;
 * KVD_INTO_LIST also a list's length in field `n`.
 */
#define KVD_INTO(T, f)         .at = offsetof(T, f), .size = sizeof(((T *)0)->f)
#define KVD_INTO_LIST(T, f, n) KVD_INTO(T, f), .count = offsetof(T, n)
#define KVD_GIVEN(T, f)        .given = offsetof(T, f)
#define KVD_TYPED(T, f)        .typed = offsetof(T, f)

enum { KVD_OPTION_EXAMPLES = 8, KVD_OPTION_ANY_OF = 8 };

typedef struct {
    const char *name;
    const char *summary; /* first paragraph of --help */
    /* Forms of the command after the program's name, one per line. */
    const char *usage[4];
    /* Lists of option names; at least one option of each list must be given. */
    const char *any_of[KVD_OPTION_ANY_OF];
    /* Examples in --help: whole commands, one per line. */
    const char *examples[KVD_OPTION_EXAMPLES];
    const char *notes; /* last paragraphs of --help, or NULL */
    /* Options that the program `moved_to` has instead of this one; may be NULL. */
    const char *moved;
    const char *moved_to;
    const kvd_option *options; /* ends with the row {0} */
    /* Checks *config for what the table cannot express, and sets derived fields; may be NULL. */
    int (*check)(void *config, kvd_err *err);
} kvd_program;

/*
 * Parses argv into *config, whose option fields the caller zeroes; texts point into argv. Wrong
 * usage exits with status 2; --help, --version and KVD_OPT_PRINT exit with status 0. Starts
 * OpenBLAS first (common/blas.h).
 */
void kvd_options_parse(const kvd_program *p, int argc, char **argv, void *config);

/* Like kvd_options_parse, but on wrong usage returns -1 and fills *err. */
int kvd_options_read(const kvd_program *p, int argc, char **argv, void *config, kvd_err *err);

/* Frees the lists of KVD_OPT_WHOLES and KVD_OPT_NUMBERS. */
void kvd_options_release(const kvd_program *p, void *config);

typedef enum { KVD_DEVICE_AUTO, KVD_DEVICE_CPU, KVD_DEVICE_CUDA } kvd_device;

typedef struct {
    const char *output;
    uint64_t seed;
    /* --threads; if not given, 0 until kvd_run_start sets the number of usable cores */
    int threads;
    kvd_device device;
    bool quiet; /* -q: no progress, no summary; errors are still printed */
    bool json;  /* --json: one JSON object on stdout instead of the summary */
} kvd_common_options;

extern const char *const kvd_device_words[4]; /* words of --device: "auto", "cpu", "cuda" */
/* Number types "f32", "f16", "bf16", indexed by kvd_dtype. */
extern const char *const kvd_dtype_words[4];
/* Number types of a forward pass: "f32", "bf16". */
extern const char *const kvd_compute_words[4];
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
                   .otherwise = "every core allowed",                                              \
                   .help = "CPU threads; more than OpenBLAS serves (64 in the packages of "        \
                           "Debian and Ubuntu) are not used"                                       \
    }
#define KVD_OPTION_QUIET(T)                                                                        \
    {                                                                                              \
        "quiet", 'q', KVD_OPT_FLAG, KVD_INTO(T, common.quiet),                                     \
            .help = "Print no progress and no summary; errors are still printed"                   \
    }
#define KVD_OPTION_JSON(T)                                                                         \
    {                                                                                              \
        "json", .type = KVD_OPT_FLAG, KVD_INTO(T, common.json),                                    \
                .help = "Print one JSON object on stdout instead of the summary"                   \
    }
/* Rows for all common options; type T has a field `common` of type kvd_common_options. */
#define KVD_OPTIONS_COMMON(T, what, text)                                                          \
    {.help = "Common options"}, KVD_OPTION_OUTPUT(T, what, text), KVD_OPTION_SEED(T),              \
        KVD_OPTION_THREADS(T), KVD_OPTION_DEVICE(T), KVD_OPTION_QUIET(T), KVD_OPTION_JSON(T)

/*
 * Finds the word most similar to `text`: call once per `candidate`, with *nearest NULL and
 * *distance 0 at first. *nearest stays NULL if no word is similar.
 */
void kvd_option_nearest(const char *text, const char *candidate, const char **nearest,
                        size_t *distance);

#endif
