/* The registry: names users type, and the axes they fill. */
#ifndef KVD_METHODS_PRESETS_H
#define KVD_METHODS_PRESETS_H

#include "methods/dims/dims.h"

/* Where widths come from: Eq. 6 over singular values, over their squares, or a table of measured error. */
typedef enum { KVD_RANKS_EQ6, KVD_RANKS_EQ6_ENERGY, KVD_RANKS_ERROR } kvd_ranks;
extern const char *const kvd_ranks_name[3]; /* "eq6", "eq6-energy", "error": also the rule of rates files */

/* "zack" or "zack,p=0.5,ranks=error": NAME[,key=value]... */
typedef struct {
    const kvd_dims_method *dims; /* NULL: none                                   */
    double p;                    /* key p: wanted overall p; NaN when not given  */
    double r;                    /* key r: removal rate; NaN when not given      */
    kvd_ranks ranks;             /* key ranks; eq6 when not given                */
} kvd_method;

/* p and r in [0, 1). Refuses p and r together, keys given twice, r with ranks=error, and what a method
 * has no use for (none takes no key; uniform neither r nor ranks). */
int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
const char *kvd_method_name(const kvd_method *m);
/* Number of dims methods and the i-th, for --help and docs. */
int kvd_method_count(void);
const kvd_dims_method *kvd_method_at(int i);

#endif
