/*
 * Keys of a method's text, "zack,p=0.5,ranks=error": which members have one of that name, their values, and which go together.
 * What presets.c and rate.c share; private to src/methods.
 */
#ifndef KVD_METHODS_KEYS_H
#define KVD_METHODS_KEYS_H

#include "methods/presets.h"

typedef struct {
    const char *name;
    const kvd_parameter *parameter;
    const kvd_rate *rate;
    kvd_values *values;
} kvd_keyed;

enum { KVD_MEMBERS = 5 /* that one method may have beside dims with p and r */ };

/* Members of all axes but dims with p and r; how many. Values point into *m. */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);
/* Index of a key among the parameters of a member; -1: it has none of that name. */
int kvd_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets "key" or "NAME.key" of *m, whose members are chosen. *seen, 0 before the first key, collects which keys of dims were given. Refuses
 * keys that no member has or that several have, that were given before, and values beyond their range.
 */
int kvd_method_set_key(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err);
/* The values of a preset (m->usual), for keys that were not given. */
void kvd_method_set_usual(kvd_method *m);
/* Refuses keys that exclude one another, that their method has no use for, and members that lack one they need. */
int kvd_method_check(const kvd_method *m, unsigned seen, kvd_err *err);

/* Writes m->settings anew. */
void kvd_method_describe(kvd_method *m);

#endif
