/* RoPE in config.json: theta and scaling, wherever a file states them. */
#ifndef KVD_MODEL_CONFIG_ROPE_H
#define KVD_MODEL_CONFIG_ROPE_H

#include <jansson.h>

#include "model/config.h"

/*
 * rope_theta (10000 when absent) at the top level or inside rope_parameters / rope_scaling, and the
 * scaling there; of original_max_position_embeddings the top level counts too. After the sizes.
 *
 *   original  what original_max_position_embeddings is when no place states it; 0: it must be there
 *   types     bit 1 << kvd_rope_scaling: the scalings that the family has
 */
enum { KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_LONGROPE << 1) - 1 };
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

#endif
