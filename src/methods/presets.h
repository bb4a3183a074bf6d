/* The registry: names users type, and the axes they fill. */
#ifndef KVD_METHODS_PRESETS_H
#define KVD_METHODS_PRESETS_H

#include "methods/dims/dims.h"

/* "none,zack" or "zack,p=0.5": NAME[,key=value]... */
typedef struct {
    const kvd_dims_method *dims; /* NULL: none                                   */
    double p;                    /* key p: wanted overall p; NaN when not given  */
    double r;                    /* key r: removal rate; NaN when not given      */
} kvd_method;

int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err);
const char *kvd_method_name(const kvd_method *m);
/* Number of dims methods and the i-th, for --help and docs. */
int kvd_method_count(void);
const kvd_dims_method *kvd_method_at(int i);

#endif
