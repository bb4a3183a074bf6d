/* Parses command lines described by tables of kvd_option rows, from which --help and the man page
 * are made.
 *
 * If an option whose value is a number or a word from a list is given twice, the last value counts.
 * For an option whose value is a text or a list of numbers, a second value is an error.
 *
 *     static const kvd_option options[] = {
 *         {.help = "Input"},
 *         {"MODEL", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(config, model)},
 *         {"tokens", .type = KVD_OPT_WHOLE, KVD_INTO(config, tokens), .low = 2,
 *          .otherwise = "all", .help = "Number of tokens to read"},
 *         KVD_OPTIONS_COMMON(config, "FILE", "Write the result to FILE, whole or not at all"),
 *         {0}}; */
#ifndef KVD_COMMON_OPTIONS_H
#define KVD_COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/args.h"
#include "common/err.h"

typedef enum {
    KVD_OPT_GROUP,  /* a heading of --help, not an option */
    KVD_OPT_FLAG,   /* without a value; sets a bool to true */
    KVD_OPT_WHOLE,  /* whole number in `low` .. `high`, stored in an integer of 4 or 8 bytes */
    KVD_OPT_NUMBER, /* number in `low` .. `high`, stored in a double; NaN if not given */
    KVD_OPT_TEXT,   /* text of at least one byte, stored in a const char * */
    KVD_OPT_TEXTS,  /* text that may be repeated, appended to an array of const char * */
    KVD_OPT_WORD,   /* one word of `words`, stored as its index */
    KVD_OPT_WORDS, /* comma-separated words of `words`; word i sets element i of an array of bool */
    KVD_OPT_WHOLES, /* comma-separated whole numbers, in an allocated array of size_t */
    /* comma-separated numbers or FIRST:LAST:STEP, in an allocated array of double */
    KVD_OPT_NUMBERS,
    KVD_OPT_CALL, /* any value; the function `call` parses it */
    KVD_OPT_PRINT /* The function `print` writes to stdout, and the program ends. */
} kvd_option_type;

typedef struct {
    const char *name; /* long name of the option, or name of a positional argument */
    char letter;      /* one-letter name; 0 means none */
    kvd_option_type type;
    const char *arg; /* name of the value in --help; if NULL, the type gives the name */
    size_t at, size; /* offset and size of the field that receives the value (KVD_INTO) */
    size_t count;    /* for a list, offset of the size_t that receives the number of elements */
    size_t given;    /* offset of a bool that is set if the option was given; 0 means none */
    size_t typed;    /* offset of a const char * that receives the value as typed; 0 means none */
    /* allowed range of the value or, for texts, largest length `high`; no limits if both are 0 */
    double low, high;
    bool above_low, below_high; /* true if `low` or `high` itself is not allowed */
    bool positional;            /* true for an argument without a name */
    bool optional; /* true if the value may be left out: --name or --name=VALUE, not --name VALUE */
    bool repeatable;          /* true if an option of type KVD_OPT_CALL may be repeated */
    bool early;               /* true if the option is parsed before all others */
    const char *const *words; /* Accepted words, ended by NULL. An empty word is skipped. */
    const char *initial;      /* default value, parsed like a value on the command line */
    const char *otherwise;    /* description of the default for --help */
    const char *unit;         /* unit of the default in --help: "tokens" */
    /* names of options, separated by spaces, one of which must be given with this option */
    const char *requires;
    /* names of options that must not be given together with this option */
    const char *excludes;
    int (*call)(void *config, const char *text, kvd_err *err);
    void (*print)(void);
    const char *help;
} kvd_option;

/* Initialisers of a kvd_option. KVD_INTO stores the value of the option in field `f` of struct `T`.
 * KVD_INTO_LIST stores a list of values in field `f`, and its length in field `n`. */
#define KVD_INTO(T, f)         .at = offsetof(T, f), .size = sizeof(((T *)0)->f)
#define KVD_INTO_LIST(T, f, n) KVD_INTO(T, f), .count = offsetof(T, n)
#define KVD_GIVEN(T, f)        .given = offsetof(T, f)
#define KVD_TYPED(T, f)        .typed = offsetof(T, f)

enum { KVD_OPTION_EXAMPLES = 8, KVD_OPTION_ANY_OF = 8 };

typedef struct {
    const char *name;
    const char *summary;  /* first paragraph of --help */
    const char *usage[4]; /* forms of the command after the program's name, one per line */
    /* lists of option names; the user must give at least one option of each list */
    const char *any_of[KVD_OPTION_ANY_OF];
    /* examples in --help: whole commands, one per line */
    const char *examples[KVD_OPTION_EXAMPLES];
    const char *notes; /* last paragraphs of --help, or NULL */
    /* options that belong to the program `moved_to` instead of this one; may be NULL */
    const char *moved;
    const char *moved_to;
    const kvd_option *options; /* ends with the row {0} */
    /* function that checks *config further, and may set other fields; may be NULL */
    int (*check)(void *config, kvd_err *err);
} kvd_program;

/* Parses argv into *config, which must be zero. Wrong usage exits with status 2. */
void kvd_options_parse(const kvd_program *p, int argc, char **argv, void *config);

/* Like kvd_options_parse, but on wrong usage returns -1 and fills *err. */
int kvd_options_read(const kvd_program *p, int argc, char **argv, void *config, kvd_err *err);

/* Frees the lists of numbers in *config that were allocated when options were parsed. */
void kvd_options_release(const kvd_program *p, void *config);

typedef enum { KVD_DEVICE_AUTO, KVD_DEVICE_CPU, KVD_DEVICE_CUDA } kvd_device;

typedef struct {
    const char *output;
    uint64_t seed;
    /* value of --threads; 0 if not given, until kvd_run_start sets it */
    int threads;
    kvd_device device;
    bool quiet; /* -q: no progress, no summary */
    bool json;  /* --json: one JSON object on stdout instead of the summary */
} kvd_common_options;

extern const char *const kvd_device_words[4]; /* words of --device: "auto", "cpu", "cuda" */
/* names of number types "f32", "f16", "bf16", indexed by kvd_dtype */
extern const char *const kvd_dtype_words[4];
/* number types of a forward pass: "f32", "bf16" */
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
/* Lists the command-line options that programs share: output, seed, threads, device, quiet and
 * json. T must have a field `common` of type kvd_common_options. */
#define KVD_OPTIONS_COMMON(T, what, text)                                                          \
    {.help = "Common options"}, KVD_OPTION_OUTPUT(T, what, text), KVD_OPTION_SEED(T),              \
        KVD_OPTION_THREADS(T), KVD_OPTION_DEVICE(T), KVD_OPTION_QUIET(T), KVD_OPTION_JSON(T)

/* Sets *nearest to `candidate` if `candidate` is similar to `text`, and more similar than the old
 * *nearest. Before the first call, *nearest must be NULL and *distance 0. */
void kvd_option_nearest(const char *text, const char *candidate, const char **nearest,
                        size_t *distance);

#endif
