/* A method as users type it: NAME[+NAME]...[,KEY=VALUE]..., such as
 * "h2o+zack+kivi,heavy=0.2,p=0.5,bits=4". Ambiguous parameters are written NAME.KEY. */
#ifndef KVD_METHODS_METHOD_H
#define KVD_METHODS_METHOD_H

#include "formats/error_table.h"
#include "methods/plan.h"

/* Rule that decides how many dimensions each head keeps. */
typedef enum {
    KVD_WIDTH_RULE_EQ6,
    KVD_WIDTH_RULE_EQ6_ENERGY, /* Eq. 6 over squared singular values */
    /* Uses a file with the measured loss of every head at every number of kept dimensions. */
    KVD_WIDTH_RULE_ERROR,
    /* Removes the dimensions whose removal is predicted to increase the loss least. */
    KVD_WIDTH_RULE_LOSS,
    KVD_N_WIDTH_RULES
} kvd_width_rule;
extern const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES];

typedef enum { KVD_CUT_BOTH, KVD_CUT_QK, KVD_CUT_V } kvd_cut;

enum { KVD_SETTINGS = 320 };

typedef struct {
    /* Names of the combined methods, such as "none", "zack" or "h2o+kivi". */
    char name[64];
    /* Parameters, such as "h2o.heavy=0.1,h2o.recent=0.1", without those that set the number of kept
     * dimensions (p, r, ranks). */
    char settings[KVD_SETTINGS];
    /* Compression methods. To use them, copy the plan, set dims, type, prompt and seed of the copy,
     * and open the copy. */
    kvd_plan plan;
    /* Method whose rotation matrices come from a spectrum file given by --spectrum (zack, fdc,
     * ...), or NULL. */
    const kvd_dims_method *dims;
    /* Projections that method `dims` computes: of Q and K, of V, or of all three. */
    kvd_cut cut;
    /* Fraction of dimensions to remove, in [0, 1). NaN if the user did not give it. */
    double p;
    /* Parameters p.qk and p.v: fractions of dimensions to remove from Q and K, and from V. The user
     * gives both or neither. */
    double p_side[2];
    /* Parameter r: largest fraction of a head's summed singular values to remove, in [0, 1), or
     * NaN. */
    double r;
    /* Parameter p_u: fraction of the dimensions to remove from less important tokens, in [0, 1), or
     * NaN. */
    double p_low;
    double p_low_side[2];
    kvd_width_rule ranks;
    /* Rotations of Q, K and V of each head, borrowed, or NULL. kvd_method_find_files sets it. */
    const kvd_spectrum *spectrum;
    const kvd_rates *rates;
    const kvd_error_table *table;
    const char *spectrum_path, *rates_path, *table_path;
    /* The following fields are private. */
    /* Default parameters "KEY=VALUE,..." if the method is a named combination, such as mikv
     * (lower+hetero). Otherwise NULL. */
    const char *usual;
    /* Parameter that trades bytes for quality, if the method combines others under one name.
     * Otherwise NULL. */
    const kvd_tradeoff *tradeoff;
} kvd_method;

/* Parses `text`, for example "snapkv+kivi,budget=0.25", into `*m`. Fails for unknown, invalid,
 * unused or contradictory methods and parameters. */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
/* Returns true if the user said how many dimensions to remove. The user does so with parameter p,
 * with parameters p.qk and p.v, or with parameter r, for example "zack,p=0.5". */
bool kvd_method_has_point(const kvd_method *m);
bool kvd_method_has_sides(const kvd_method *m);
/* Returns true if the user said how many dimensions to remove from less important tokens. The user
 * does so with parameter p_u, or with parameters p_u.qk and p_u.v. */
bool kvd_method_has_low(const kvd_method *m);
const char *kvd_method_name(const kvd_method *m);
bool kvd_method_is_none(const kvd_method *m);
/* Returns true if a method of the combination chooses which stored tokens a step reads. */
bool kvd_method_selects(const kvd_method *m);

typedef struct {
    const kvd_method_info *info;
    /* Axis that the method reduces: "tokens", "bits", "dims" or "layers". */
    const char *axis;
    /* The method if it reads rotation matrices from a file given by --spectrum, otherwise NULL. */
    const kvd_dims_method *dims;
    /* True if the method makes the cache smaller by itself, and none of its parameters is a file
     * path. */
    bool alone;
} kvd_method_entry;
/* Writes the i-th known method, in the order of --help. Returns false if there are fewer. */
bool kvd_method_entry_at(int i, kvd_method_entry *out);
const char *kvd_method_nearest(const char *name);

/* Returns the i-th file path among the parameters (file=PATH) of compression methods *m, or NULL if
 * there are fewer. */
const char *kvd_method_file(const kvd_method *m, int i);
/* Returns true if parameter `key` (KEY or METHOD.KEY, `length` characters) takes a file path. */
bool kvd_method_is_text_key(const char *key, size_t length);

/* Must be called if the user gives a file of squared gradients (--fisher). Makes a quantiser in *m
 * use the file. */
void kvd_method_with_fisher(kvd_method *m);
bool kvd_method_reads_fisher(const kvd_method *m);

/* Parameter that trades stored bytes for quality, for example a fraction of dimensions to remove,
 * or a token budget. */
typedef struct {
    /* Name of the parameter as --method takes it: "p", "h2o.heavy". */
    char name[64];
    /* Parameter values that make the cache largest (most) and smallest (least). */
    double most, least;
    bool whole;
    /* True if a sweep takes geometric steps, false for equal steps. */
    bool geometric;
    bool p;
    /* Name of a second parameter that a sweep also sets, or "". For example, a sweep of p sets p_u
     * to at + slope * p. */
    char with[64];
    double at, slope;
} kvd_method_tradeoff;

/* Finds the parameter of `m` that trades stored bytes for quality. key: its name, such as "p" or
 * "h2o.heavy". NULL: the parameter of the last method in a combination such as "h2o+kivi". Fails if
 * there is no such parameter. */
int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err);
/* Returns the parameter value, rounded, at fraction `share` of the way from t->most to t->least. */
double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share);
/* Maps a parameter value between t->most and t->least to a fraction between 0 and 1. */
double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value);
bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t);
/* Copies *m to *out with parameter t->name set to `value`, and parameter t->with, if any, computed
 * from `value`. */
void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out);
/* Returns the value of parameter t->name in m. Returns NaN for p, the fraction of dimensions to
 * remove, if m has another parameter instead, such as a removal rate r. */
double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t);

/* Copies to `to` [KVD_SETTINGS] the parameters in `settings` ("NAME.KEY=VALUE,...") that differ
 * from their defaults, and returns `to`. Also copies parameter `always` ("NAME.KEY", or "" for
 * none). Omits the prefix "NAME." for parameters of the method called `name`. */
const char *kvd_method_changed_settings(const char *name, const char *settings, const char *always,
                                        char *to);

/* The functions from here on are for method.c and method_keys.c only. */

/* Sets the parameters given in `text` ("KEY=VALUE,..." or NULL), and sets all others to their
 * defaults. Modifies `text`. Fails for an unknown, duplicate, invalid or unused parameter, and for
 * parameters that contradict each other. */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

void kvd_method_write_settings(kvd_method *m);

#endif
