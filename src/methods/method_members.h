/* Members of a parsed method that have keys of their own, for method.c and method_keys.c. */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/* A member with keys of its own: any but a dims method with widths. */
typedef struct {
    const kvd_method_info *info;
    kvd_parameter_values *values; /* values stored in the kvd_method */
} kvd_keyed;

enum { KVD_MEMBERS = 6 /* most members with keys that one method can have */ };

/* Fills `out` and returns the number of members. The method of the bits axis is the last one. */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);

/* Returns the index of a key among the parameters of a member; -1: it has no such key. */
int kvd_method_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets the keys of `text`, "KEY=VALUE,..." (NULL: none; modified), then the usual values of keys
 * that were not given, and checks that they fit together. Fails on what kvd_method_parse refuses.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

/* Writes the keys and values of all members to m->settings, as rows of results name them. */
void kvd_method_write_settings(kvd_method *m);

#endif
