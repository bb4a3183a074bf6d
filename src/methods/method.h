/*
 * A method as users type it, such as "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4":
 * NAME[+NAME]...[,KEY=VALUE]... Each NAME is a member of the combination. A parameter belongs to
 * the member that declares it; if several members declare it, it is written NAME.KEY. Parameter
 * keep_layers=FIRST:LAST, which every method has, leaves the first and last layers uncompressed.
 */
#ifndef KVD_METHODS_METHOD_H
#define KVD_METHODS_METHOD_H

#include "formats/error_table.h"
#include "methods/plan.h"

/*
 * Rule that chooses the number of kept dimensions of every head from p (fraction of dimensions to
 * remove) or r (largest fraction of the sum of singular values that may be removed, Eq. 6 of the
 * ZACK paper).
 */
typedef enum {
    KVD_WIDTH_RULE_EQ6,        /* equation 6 of the ZACK paper, over singular values */
    KVD_WIDTH_RULE_EQ6_ENERGY, /* equation 6 over squared singular values */
    /* The rule "error": widths are chosen from a file with the measured loss of every width */
    KVD_WIDTH_RULE_ERROR,
    /* The spectrum's singular values are taken as losses in nats; only for method fisher */
    KVD_WIDTH_RULE_LOSS,
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/*
 * Names of the rules: "eq6", "eq6-energy", "error", "loss". Files of kept dimensions (rates.h5) use
 * them too.
 */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

/*
 * Matrices whose dimensions a method reduces: Q and K together, V, or both. Matrices that are not
 * reduced keep all d_head dimensions. Matrices that are reduced keep as many dimensions as with
 * KVD_CUT_BOTH.
 */
typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    /* Names of the members without parameters: "none", "zack", "h2o+kivi". */
    char name[64];
    /* All parameters but p, r and ranks as text, such as "h2o.heavy=0.1,h2o.recent=0.1". */
    char settings[320];
    /*
     * Members that act on layers, tokens or bits, or that compute their own projections. This plan
     * is a template. To use it, code copies it, sets dims, type, prompt and seed in the copy, and
     * opens the copy.
     */
    kvd_plan plan;
    /*
     * Method that projects heads onto the rotations of a spectrum file (zack, fdc, ...), or NULL.
     */
    const kvd_dims_method *dims;
    /*
     * The fields from `cut` to `ranks` are parameters of method `dims`. Fractions and rates are in
     * [0, 1), or NaN if the user did not give them.
     */
    /* Parameter `cut`: which matrices are reduced; default both. */
    kvd_cut cut;
    /* Parameter `p`: fraction of the dimensions of Q, K and V to remove. */
    double p;
    /*
     * Parameters `p.qk` and `p.v`: fraction of the dimensions to remove from Q and K, and from V.
     * Either both are given or neither.
     */
    double p_side[2];
    /*
     * Parameter `r`: removal rate, the largest fraction of the sum of singular values that may be
     * removed (Eq. 6 of the ZACK paper).
     */
    double r;
    /* Parameter `p_u`: fraction of the dimensions to remove from tokens at KVD_LEVEL_LOW. */
    double p_low;
    /*
     * Parameters `p_u.qk` and `p_u.v`: fraction to remove from Q and K, and from V, of tokens at
     * KVD_LEVEL_LOW.
     */
    double p_low_side[2];
    /* Parameter `ranks`: rule that chooses the kept dimensions; default eq6. */
    kvd_width_rule ranks;
    /*
     * File with the method's rotations, chosen by kvd_method_find_files (points.h); borrowed, or
     * NULL.
     */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table; /* set only with ranks=error */
    const char *spectrum_path, *rates_path, *table_path;
    /* The fields from here on are private. */
    /* Default parameters "KEY=VALUE,..." of a named combination such as mikv, or NULL. */
    const char *usual;
    /*
     * Parameter of a named combination, such as zdc, that sets the trade-off of bytes against
     * quality. NULL if the user's text names another method after the combination.
     */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into `*m`. Fails if two names act on the same axis, or if a parameter is unknown,
 * given twice, out of range or unused by the method. Also fails if more than one of p, r and the
 * pair p.qk, p.v is given, if only one of p.qk and p.v is given, or if r is combined with
 * ranks=error.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if the user gave p, or p.qk and p.v, or r. */
bool kvd_method_has_point(const kvd_method *m);
/* Returns true if the user gave p.qk and p.v. */
bool kvd_method_has_sides(const kvd_method *m);
/* Returns true if the user gave p_u, or p_u.qk and p_u.v. */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);
/* Returns true if every step reads some of the stored tokens, which a member chooses. */
bool kvd_method_selects(const kvd_method *m);

typedef struct {
    const kvd_method_info *info;
    /*
     * Axis such as "tokens". For a combination, the names of its methods, such as
     * "sparsity+hetero".
     */
    const char *axis;
    /* NULL unless the method projects heads onto the rotations of a spectrum file. */
    const kvd_dims_method *dims;
    /*
     * True if the method, used alone and without an input file of its own, reduces the stored
     * bytes.
     */
    bool alone;
} kvd_method_entry;
/*
 * Writes the i-th known method, in the order of --help, to `*out`. "none" is not listed. Returns
 * false if there is no i-th method.
 */
bool kvd_method_entry_at(int i, kvd_method_entry *out);
/* Returns the method name most like `name`, in lower or upper case, or NULL if none is like it. */
const char *kvd_method_nearest(const char *name);

/*
 * Returns the path of the i-th file that a parameter names, such as file=PATH of method projected,
 * or NULL.
 */
const char *kvd_method_file(const kvd_method *m, int i);
/*
 * Returns true if the value of `key` (KEY or NAME.KEY, `length` characters) is a path for some
 * method.
 */
bool kvd_method_is_text_key(const char *key, size_t length);

/*
 * Tells the method that squared gradients (--fisher) are available. A quantiser then uses them,
 * unless the user set its parameter for squared gradients or the method also reduces dimensions.
 */
void kvd_method_with_fisher(kvd_method *m);
bool kvd_method_reads_fisher(const kvd_method *m);

/*
 * Parameter that trades stored bytes for quality, such as p, a token budget, a rank or a number of
 * bits.
 */
typedef struct {
    /* name of the parameter as --method takes it: "p", "h2o.heavy" */
    char name[64];
    /* Value of the parameter that stores the most bytes, and value that stores the fewest. */
    double most, least;
    bool whole;
    /* True: the next value of a sweep is this value times a constant. False: plus a constant. */
    bool geometric;
    /* True if the parameter is p, the fraction of all dimensions that a method removes. */
    bool p;
    /*
     * Private: name of a second parameter, or "" if there is none. The second parameter's value is
     * `at` + `slope` * (value of the first parameter).
     */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/*
 * Finds a trade-off parameter. If `key` (KEY or NAME.KEY) is given, *out receives this parameter.
 * If `key` is NULL, *out receives the trade-off parameter of the last method named in the text.
 * Fails if there is none, or if `key` is not a trade-off parameter.
 */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/*
 * Returns the parameter's value at fraction `share` of the way from t->most (share 0) to t->least
 * (share 1), rounded to six digits or to a whole number.
 */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/* Returns the fraction `share` for which kvd_method_tradeoff_at gives `value`. */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/*
 * Copies `*m` to `*out` and sets the trade-off parameter of the copy to `value`. A second parameter
 * is computed from `value` unless the user gave it.
 */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/*
 * Returns the value of the trade-off parameter in `*m`. Returns NaN if the parameter is p and the
 * user gave r, or p.qk and p.v, instead.
 */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

#endif
