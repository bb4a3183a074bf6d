/* Every family, for the registry in family.c. */
#ifndef KVD_MODEL_FAMILIES_FAMILIES_H
#define KVD_MODEL_FAMILIES_FAMILIES_H

#include "model/family.h"

extern const kvd_family kvd_family_llama;

#endif
