/*
 * Sets and writes the parameters of a parsed method. Only method.c and method_keys.c use this file.
 */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/*
 * Sets the method's parameters as `text` says, "KEY=VALUE,..." or NULL, then missing defaults of a
 * named combination, and checks all. Modifies `text`. Fails as kvd_method_parse does.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

void kvd_method_write_settings(kvd_method *m);

#endif
