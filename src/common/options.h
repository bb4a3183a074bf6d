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
    /* a heading of --help, whose text is `help`; not an option */
    KVD_OPT_GROUP,
    KVD_OPT_FLAG,    /* takes no value; sets a bool to true */
    KVD_OPT_WHOLE,   /* whole number within low .. high, into an integer of 4 or 8 bytes */
    KVD_OPT_NUMBER,  /* number within low .. high, into a double; NaN when not given */
    KVD_OPT_TEXT,    /* text of at least one byte, into a const char * */
    KVD_OPT_TEXTS,   /* repeatable: appended to an array of const char * */
    KVD_OPT_WORD,    /* one of `words`, as its index, into a bool, an int or an enumeration */
    KVD_OPT_WORDS,   /* comma list of `words`: sets their elements of an array of bool */
    KVD_OPT_WHOLES,  /* comma list of whole numbers, into an allocated array of size_t */
    KVD_OPT_NUMBERS, /* comma list or FIRST:LAST:STEP, into an allocated array of double */
    KVD_OPT_CALL,    /* `call` reads the value */
    KVD_OPT_PRINT    /* takes no value; `print` writes to stdout and the program ends */
} kvd_option_type;

typedef struct {
    const char *name; /* long name, or the name of a positional argument */
    char letter;      /* short name; 0 means none */
    kvd_option_type type;
    const char *arg; /* name of the value in --help; NULL if derived from the type */
    size_t at, size; /* field of the configuration; KVD_INTO fills both */
    size_t count;    /* offset of the size_t that counts the elements of a list */
    size_t given;    /* offset of a bool that tells whether the option was given; 0 means none */
    size_t typed;    /* offset of a const char * that receives the value as typed; 0 means none */
    /*
     * Range of allowed numbers; both 0: any number. For KVD_OPT_TEXT, `high` is the largest number
     * of bytes. For KVD_OPT_TEXTS and KVD_OPT_WORDS, `high` is unused.
     */
    double low, high;
    bool above_low, below_high; /* true if the bound itself is not allowed */
    bool positional;            /* an argument without a name; read in the order of the rows */
    bool optional;   /* the value may be left out: --name and --name=VALUE, never --name VALUE */
    bool repeatable; /* for KVD_OPT_CALL; KVD_OPT_TEXTS is always repeatable */
    bool early;      /* read before all others, whatever the order */
    /*
     * Words that the option accepts, a list that ends with NULL or, for KVD_OPT_WORDS, with the
     * field. Empty words are not offered.
     */
    const char *const *words;
    const char *initial;   /* default value; parsed like a given value, before the command line */
    const char *otherwise; /* default in words, if it is not a single value */
    const char *unit;      /* unit of the default: "tokens" */
    const char *requires;  /* names of options, one of which must be given as well */
    const char *excludes;  /* names of options that must not be given together with this one */
    int (*call)(void *config, const char *text, kvd_err *err);
    void (*print)(void);
    const char *help;
} kvd_option;

/*
 * Designated initialisers of a table row, which store the option's value in field `f` of the
 * configuration type `T`.
 */
#define KVD_INTO(T, f)         .at = offsetof(T, f), .size = sizeof(((T *)0)->f)
#define KVD_INTO_LIST(T, f, n) KVD_INTO(T, f), .count = offsetof(T, n)
#define KVD_GIVEN(T, f)        .given = offsetof(T, f)
#define KVD_TYPED(T, f)        .typed = offsetof(T, f)

enum { KVD_OPTION_EXAMPLES = 8, KVD_OPTION_ANY_OF = 8 };

typedef struct {
    const char *name;     /* "kvdim-collect" */
    const char *summary;  /* first paragraph of --help */
    const char *usage[4]; /* forms of the command, printed after the name, one per line */
    /* sets of option names; the user must give one option of each set */
    const char *any_of[KVD_OPTION_ANY_OF];
    const char *examples[KVD_OPTION_EXAMPLES]; /* examples: whole commands, one per line */
    const char *notes;                         /* last paragraphs of --help, or NULL */
    const char *moved;         /* names of options that another program has now; NULL means none */
    const char *moved_to;      /* name of that program */
    const kvd_option *options; /* ends with {0} */
    /*
     * Callback that checks what the table cannot express, or NULL. It may set fields that follow
     * from others.
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
    const char *output; /* -o */
    uint64_t seed;      /* --seed */
    int threads;        /* --threads; 0 until kvd_run_start, which sets it to every core allowed */
    kvd_device device;  /* --device */
    bool quiet;         /* -q: no progress, no summary; errors are still printed */
    bool json;          /* --json: one JSON object on stdout instead of the summary */
} kvd_common_options;

extern const char *const kvd_device_words[4];  /* "auto", "cpu", "cuda" */
extern const char *const kvd_dtype_words[4];   /* "f32", "f16", "bf16"; the indices are kvd_dtype */
extern const char *const kvd_compute_words[4]; /* "f32", "bf16"; the indices are kvd_dtype */
extern const char *const kvd_switch_words[3];  /* "off", "on" */

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
 * Table rows of all common options above, with their heading; the configuration type T has a field
 * `common`.
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
