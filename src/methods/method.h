/*
 * A method as users type it: NAME[+NAME]...[,KEY=VALUE]..., such as
 * "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4".
 * Ambiguous parameters are written NAME.KEY. Every method has keep_layers=FIRST:LAST, the
 * uncompressed first and last layers.
 */
#ifndef KVD_METHODS_METHOD_H
#define KVD_METHODS_METHOD_H

#include "formats/error_table.h"
#include "methods/plan.h"

/*
 * Rule that chooses every head's kept dimensions from p (fraction to remove) or r (removal rate,
 * Eq. 6 of the ZACK paper).
 */
typedef enum {
    KVD_WIDTH_RULE_EQ6,
    KVD_WIDTH_RULE_EQ6_ENERGY, /* Eq. 6 over squared singular values */
    /* widths from a file with the measured loss of every width */
    KVD_WIDTH_RULE_ERROR,
    /* the singular values are losses in nats (method fisher) */
    KVD_WIDTH_RULE_LOSS,
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/* Names of the rules, also in rates.h5: "eq6", "eq6-energy", "error", "loss". */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    /* names of the members: "none", "zack", "h2o+kivi" */
    char name[64];
    /* All parameters but p, r and ranks, such as "h2o.heavy=0.1,h2o.recent=0.1". */
    char settings[320];
    /* A template: a caller copies it, sets dims, type, prompt and seed, and opens the copy. */
    kvd_plan plan;
    /* method with rotations from a spectrum file (zack, fdc, ...), or NULL */
    const kvd_dims_method *dims;
    /* Parameters of method `dims`; NaN if not given. Fractions and rates: [0, 1). */
    kvd_cut cut;
    double p;
    /* parameters `p.qk` and `p.v`: fractions to remove, both or neither */
    double p_side[2];
    double r;
    double p_low;
    double p_low_side[2];
    kvd_width_rule ranks;
    /* rotations, set by kvd_method_find_files (points.h); borrowed, or NULL */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table;
    const char *spectrum_path, *rates_path, *table_path;
    /* The following fields are private. */
    /* default parameters "KEY=VALUE,..." of a named combination such as mikv, or NULL */
    const char *usual;
    /* Trade-off parameter of a named combination such as zdc, or NULL. */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into `*m`. Fails if two names act on the same axis; for an unknown, duplicate,
 * invalid or unused parameter; for more than one of p, r and the pair p.qk, p.v; for r with
 * ranks=error.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if the user gave p, or p.qk and p.v, or r. */
bool kvd_method_has_point(const kvd_method *m);
bool kvd_method_has_sides(const kvd_method *m);
/* Returns true if the user gave p_u, or p_u.qk and p_u.v. */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);
/* Returns true if a member chooses the stored tokens that a step reads. */
bool kvd_method_selects(const kvd_method *m);

typedef struct {
    const kvd_method_info *info;
    /* "tokens", "bits", ...; for a combination "sparsity+hetero" */
    const char *axis;
    /* NULL unless the method uses rotations of a spectrum file */
    const kvd_dims_method *dims;
    /* True if the method alone, without an input file, reduces the stored bytes. */
    bool alone;
} kvd_method_entry;
/* Writes the i-th known method, in --help order without "none". Returns false if none. */
bool kvd_method_entry_at(int i, kvd_method_entry *out);
const char *kvd_method_nearest(const char *name);

/* Returns the path of the i-th file that a parameter names (file=PATH), or NULL. */
const char *kvd_method_file(const kvd_method *m, int i);
/* Returns true if the value of `key` (KEY or NAME.KEY, `length` characters) is a path. */
bool kvd_method_is_text_key(const char *key, size_t length);

/* Says that --fisher is given, which quantisers use unless the method reduces dimensions. */
void kvd_method_with_fisher(kvd_method *m);
bool kvd_method_reads_fisher(const kvd_method *m);

/* Parameter that trades stored bytes for quality, such as p or a token budget. */
typedef struct {
    /* name as --method takes it: "p", "h2o.heavy" */
    char name[64];
    /* values that store the most and the fewest bytes */
    double most, least;
    bool whole;
    /* spacing of a sweep: geometric if true, else arithmetic */
    bool geometric;
    bool p;
    /* Private: second parameter, or "". Its value is `at` + `slope` * (first parameter). */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/* Finds trade-off parameter `key` (KEY, NAME.KEY; NULL: the last method's). Fails if absent. */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/* Returns the value at fraction `share` of the way from t->most to t->least, rounded. */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/* Returns the fraction `share` for which kvd_method_tradeoff_at gives `value`. */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/* Copies *m with the trade-off set to `value`, and the second one computed unless given. */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/* Returns the trade-off parameter's value, or NaN if the user gave r or p.qk, p.v instead of p. */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

#endif
