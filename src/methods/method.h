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
 * Rule that chooses how many dimensions each head keeps, given p (fraction to remove) or r (removal
 * rate, Eq. 6 of the ZACK paper).
 */
typedef enum {
    KVD_WIDTH_RULE_EQ6,
    KVD_WIDTH_RULE_EQ6_ENERGY, /* Eq. 6 over squared singular values */
    /* Uses a file with the measured loss of every head at every number of kept dimensions. */
    KVD_WIDTH_RULE_ERROR,
    /* Uses singular values that are losses in nats (method fisher). */
    KVD_WIDTH_RULE_LOSS,
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/* Names of these rules, also used in rates.h5: "eq6", "eq6-energy", "error", "loss". */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    /* Names of the combined methods, such as "none", "zack" or "h2o+kivi". */
    char name[64];
    /* All parameters except p, r and ranks as text, such as "h2o.heavy=0.1,h2o.recent=0.1". */
    char settings[320];
    /*
     * Compression methods to copy. A caller copies it, sets dims, type, prompt and seed, and opens
     * the copy.
     */
    kvd_plan plan;
    /* The method among them that uses rotations of a spectrum file (zack, fdc, ...), or NULL. */
    const kvd_dims_method *dims;
    /* Parameters of method `dims`, NaN if not given. Fractions and rates are in [0, 1). */
    kvd_cut cut;
    double p;
    /*
     * Parameters `p.qk` and `p.v`: fractions of dimensions to remove. Either both are given or
     * neither.
     */
    double p_side[2];
    double r;
    double p_low;
    double p_low_side[2];
    kvd_width_rule ranks;
    /* Rotations, borrowed, or NULL. kvd_method_find_files (points.h) sets them. */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table;
    const char *spectrum_path, *rates_path, *table_path;
    /* The following fields are private. */
    /* Default parameters "KEY=VALUE,..." of a named combination such as mikv, or NULL. */
    const char *usual;
    /* Parameter that trades bytes for quality in a named combination such as zdc, or NULL. */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into `*m`. Fails if two names both reduce layers, tokens, dimensions or bits; for
 * an unknown, duplicate, invalid or unused parameter; for more than one of p, r and both p.qk and
 * p.v; for r with ranks=error.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if the user gave how much to remove: p, or p.qk and p.v, or r. */
bool kvd_method_has_point(const kvd_method *m);
bool kvd_method_has_sides(const kvd_method *m);
/*
 * Returns true if the user gave how much to remove from less important tokens: p_u, or p_u.qk and
 * p_u.v.
 */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);
/* Returns true if a method of the combination chooses which stored tokens a step reads. */
bool kvd_method_selects(const kvd_method *m);

typedef struct {
    const kvd_method_info *info;
    /*
     * Quantity that the method reduces: "tokens", "bits", "dims" or "layers". For a named
     * combination: its members, such as "sparsity+hetero".
     */
    const char *axis;
    /* The method, if it uses rotations of a spectrum file, otherwise NULL. */
    const kvd_dims_method *dims;
    /* True if the method alone reduces the stored bytes, without an input file. */
    bool alone;
} kvd_method_entry;
/*
 * Writes the i-th known method, in the order of --help and without "none". Returns false if there
 * are fewer.
 */
bool kvd_method_entry_at(int i, kvd_method_entry *out);
const char *kvd_method_nearest(const char *name);

/* Returns the path of the i-th file that a parameter names (file=PATH), or NULL. */
const char *kvd_method_file(const kvd_method *m, int i);
/*
 * Returns true if the value of parameter `key` is a path. `key` is KEY or NAME.KEY, with `length`
 * characters.
 */
bool kvd_method_is_text_key(const char *key, size_t length);

/* Records that --fisher is given. Quantisers use that file unless the method reduces dimensions. */
void kvd_method_with_fisher(kvd_method *m);
bool kvd_method_reads_fisher(const kvd_method *m);

/* Parameter that trades stored bytes for quality, such as p or a token budget. */
typedef struct {
    /* Name of the parameter as --method takes it: "p", "h2o.heavy". */
    char name[64];
    /* Values at which the most and the fewest bytes are stored. */
    double most, least;
    bool whole;
    /* How values are spaced in a sweep: geometrically if true, otherwise arithmetically. */
    bool geometric;
    bool p;
    /*
     * Private: name of a second parameter, or "". Its value is `at` + `slope` * (value of the first
     * parameter).
     */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/*
 * Finds the parameter that trades bytes for quality. `key` is KEY, NAME.KEY, or NULL for that of
 * the last method. Fails if there is none.
 */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/* Returns the rounded value at fraction `share` of the way from t->most to t->least. */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/* Returns the fraction of the way, `share`, at which kvd_method_tradeoff_at gives `value`. */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/*
 * Copies *m with the trade-off parameter set to `value`. Computes the second parameter unless the
 * user gave it.
 */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/*
 * Returns the value of the trade-off parameter. Returns NaN if the user gave r, or p.qk and p.v,
 * instead of p.
 */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

/* The functions from here on are for method.c and method_keys.c only. */

/*
 * Sets the method's parameters as `text` says, "KEY=VALUE,..." or NULL, then missing defaults of a
 * named combination, and checks all. Modifies `text`. Fails as kvd_method_parse does.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

void kvd_method_write_settings(kvd_method *m);

#endif
