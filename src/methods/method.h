/*
 * A method as users type it: "zack", "zack,p=0.5,ranks=error",
 * "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4". The text is NAME[+NAME]...[,KEY=VALUE]... Each NAME is a
 * member of the combination and each KEY a parameter. A parameter belongs to the member that
 * declares it; if several members declare it, it is written NAME.KEY. Parameter
 * keep_layers=FIRST:LAST, which every method has, keeps the cache of the first FIRST and the last
 * LAST layers uncompressed.
 *
 * method.c holds the registry of names, parses the text and checks which members fit together;
 * method_keys.c sets and checks parameters, and knows which parameter of a method trades bytes for
 * quality.
 */
#ifndef KVD_METHODS_METHOD_H
#define KVD_METHODS_METHOD_H

#include "formats/error_table.h"
#include "methods/plan.h"

/*
 * Rule that chooses the number of kept dimensions of every head from a requested p (fraction of
 * dimensions to remove) or r (removal rate of Eq. 6 of the ZACK paper).
 */
typedef enum {
    KVD_WIDTH_RULE_EQ6,        /* equation 6 of the ZACK paper, over singular values */
    KVD_WIDTH_RULE_EQ6_ENERGY, /* equation 6 over squared singular values */
    KVD_WIDTH_RULE_ERROR,      /* by the table of losses measured for each head and width */
    KVD_WIDTH_RULE_LOSS,       /* singular values are losses in nats; only for method fisher */
    KVD_N_WIDTH_RULES
} kvd_width_rule;
/*
 * Names of the rules that choose widths: "eq6", "eq6-energy", "error", "loss". Files of kept widths
 * per head (rates.h5) use the same names.
 */
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

/*
 * Matrices whose dimensions a method reduces: Q and K together, V, or both. If only one side is
 * reduced, it keeps as many dimensions as it would if both were; the other keeps all d_head.
 */
typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

typedef struct {
    /* Names of the method without parameters: "none", "zack", "h2o+kivi". */
    char name[64];
    /*
     * Values of all parameters but p, r and ranks, such as "h2o.heavy=0.1,h2o.recent=0.1". Empty if
     * there are none.
     */
    char settings[320];
    /*
     * Members that act on layers, tokens or bits, or that make their own projections, with their
     * parameters. This plan is never opened itself: a run copies it, adds dims, type, prompt and
     * seed, and opens the copy.
     */
    kvd_plan plan;
    /*
     * Method that projects heads onto the rotations of a spectrum file (zack, fdc, ...). NULL:
     * none, or `plan` holds a method that makes its own projections or prunes channels.
     */
    const kvd_dims_method *dims;
    /*
     * The fields from here to `ranks` are parameters of method `dims`, each named after its key.
     * Fractions (p, p_u, ...) and the rate r are in [0, 1), or NaN if the user did not give them.
     */
    /* Parameter `cut`: sides that lose dimensions (Q and K, V, or both). Default both. */
    kvd_cut cut;
    /* Parameter `p`: requested fraction of the dimensions of Q-K and V to remove. */
    double p;
    /*
     * Parameters `p.qk` and `p.v`: requested fraction to remove of Q-K and of V. Either both are
     * given or neither.
     */
    double p_side[2];
    /* Parameter `r`: removal rate of Eq. 6 of the ZACK paper. */
    double r;
    /*
     * Parameter `p_u`: requested fraction of dimensions to remove from tokens at the low precision
     * level.
     */
    double p_low;
    /*
     * Parameters `p_u.qk` and `p_u.v`: the fraction to remove from Q-K and from V of low-level
     * tokens.
     */
    double p_low_side[2];
    /* Parameter `ranks`: rule that chooses the number of kept dimensions. Default eq6. */
    kvd_width_rule ranks;
    /* Files of method `dims`, chosen by kvd_method_find_files (points.h); borrowed, or NULL. */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table; /* table of measured errors; set only with ranks=error */
    const char *spectrum_path, *rates_path, *table_path;
    /* The fields from here on are private. */
    /* Default parameters "KEY=VALUE,..." of a named combination such as mikv. NULL: it has none. */
    const char *usual;
    /*
     * Parameter that a named combination such as zdc varies to trade bytes for quality. Its keys
     * are written NAME.KEY, or p and p_u. NULL unless the combination is the last name in the text.
     */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/*
 * Parses `text` into *m. Fails if two names act on the same axis, or if a parameter is unknown,
 * given twice, out of range or unused by the method. Also fails if p, r and the pair p.qk, p.v are
 * mixed, if only one of p.qk and p.v is given, or for r with ranks=error.
 */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/*
 * Returns true if the user gave p, p.qk and p.v, or r, which choose how many dimensions every head
 * keeps.
 */
bool kvd_method_has_point(const kvd_method *m);
/*
 * Returns true if the user gave p.qk and p.v, so Q-K and V lose different fractions of
 * dimensions.
 */
bool kvd_method_has_sides(const kvd_method *m);
/*
 * Returns true if the user gave p_u, or p_u.qk and p_u.v: the fractions of dimensions to remove
 * from tokens at the low precision level.
 */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);

/*
 * Entry of the registry of names: a method of one axis, or a named combination of methods such as
 * zdc.
 */
typedef struct {
    const kvd_method_info *info;
    /*
     * Axis that the method shortens, such as "tokens". For a combination its members,
     * "sparsity+hetero".
     */
    const char *axis;
    /* NULL unless the method projects heads onto the rotations of a spectrum file. */
    const kvd_dims_method *dims;
    /*
     * True if the method saves memory without a method of another axis and without a file of its
     * own.
     */
    bool alone;
} kvd_method_entry;
/*
 * Writes the i-th entry of the registry of names, in the order of --help, to *out. "none" is not
 * listed. Returns false if there is no i-th entry.
 */
bool kvd_method_entry_at(int i, kvd_method_entry *out);

/*
 * Returns the path of the i-th file that a parameter of the method names, such as file=PATH of
 * method projected. Returns NULL if there are at most i such files.
 */
const char *kvd_method_file(const kvd_method *m, int i);
/*
 * Returns true if the value of parameter `key` is a path for some method. `key` is KEY or NAME.KEY
 * and `length` characters long.
 */
bool kvd_method_is_text_key(const char *key, size_t length);

/*
 * Tells the method that squared gradients (--fisher) are available. A quantiser that can use them
 * then does, unless the user set the parameter or the method also reduces dimensions.
 */
void kvd_method_with_fisher(kvd_method *m);
/* Returns true if the method, with its parameters, reads squared gradients (--fisher). */
bool kvd_method_reads_fisher(const kvd_method *m);

/*
 * Parameter that trades stored bytes for quality: p of methods that remove dimensions, budgets of
 * methods that drop tokens, ranks of methods that merge layers, bits of quantisers.
 */
typedef struct {
    /* Name of the parameter as --method takes it: "p", "h2o.heavy". */
    char name[64];
    /* Ends of a sweep: the parameter values that store the most and the fewest bytes. */
    double most, least;
    /* True if the parameter takes whole numbers only. */
    bool whole;
    /* True if a sweep multiplies the parameter by a constant ratio; false if it adds a constant. */
    bool geometric;
    /*
     * True if the parameter is p, the fraction of all dimensions of Q-K and V that a method
     * removes. A width rule then finds the kept dimensions of every head.
     */
    bool p;
    /*
     * Private: name of a second parameter, whose value is at + slope * (value of the first). "":
     * none.
     */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/*
 * Finds the parameter that trades bytes for quality. If `key` is NULL, it is that of the last
 * method named in the text, else that of the method that declares `key` (KEY or NAME.KEY). Fails if
 * there is no such parameter, or if `key` is another parameter.
 */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/*
 * Returns the parameter value at fraction `share` of the way from t->most (share = 0) to t->least
 * (share = 1), rounded to six digits. Values of whole-number parameters are rounded to the nearest
 * whole number.
 */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/*
 * Returns how far the parameter value `value` is from t->most (0) to t->least (1), as a
 * fraction.
 */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
/* Returns true if the user set the trade-off parameter in the text of the method. */
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/*
 * Writes to *out a copy of *m whose trade-off parameter is `value`. If the trade-off has a second
 * parameter, its value is computed from `value` unless the user gave one.
 */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/*
 * Returns the value of the trade-off parameter in m. Returns NaN if the parameter is p and the user
 * gave r or p.qk and p.v instead.
 */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

#endif
