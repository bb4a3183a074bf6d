/* The members of a method that have keys of their own; what presets.c and rate.c share. Private to src/methods. */
#ifndef KVD_METHODS_KEYS_H
#define KVD_METHODS_KEYS_H

#include "methods/presets.h"

typedef struct {
    const char *name;
    const kvd_parameter *parameter;
    const kvd_rate *rate;
    kvd_values *values;
} kvd_keyed;

/* Members of all axes but dims with p and r; how many. Values point into *m. */
int kvd_method_members(kvd_method *m, kvd_keyed out[5]);
/* Index of a key among the parameters of a member; -1: it has none of that name. */
int kvd_find_key(const kvd_keyed *k, const char *key);
/* Writes m->settings anew. */
void kvd_method_describe(kvd_method *m);

#endif
