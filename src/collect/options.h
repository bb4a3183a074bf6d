#ifndef KVD_COLLECT_OPTIONS_H
#define KVD_COLLECT_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "collect/state.h"
#include "common/files/output.h"
#include "common/half.h"
#include "common/options.h"
#include "common/run.h"
#include "model/checkpoint/shapes.h"

enum { KVD_MAX_TEXTS = 4096 };

typedef struct {
    kvd_common_options common;
    const char *model;      /* path of the checkpoint; NULL if `shape` is given */
    const kvd_shape *shape; /* published shape with random weights; NULL if `model` is given */
    size_t untrained;       /* seed of random weights that replace the model's; 0 if not given */
    const char *text[KVD_MAX_TEXTS];
    size_t n_text;
    const char *ids;
    size_t n_random;
    const char *field;
    bool no_special;
    /* number of tokens in total, per sequence, and per batch; 0 if not given */
    size_t tokens, seq_len, batch;
    bool rope_both;
    bool moments;
    const char *moments_file; /* file for second moments; NULL means the file of -o */
    bool attention;
    const char *attention_file; /* file for attention statistics; NULL means the file of -o */
    /* number of sequences, from the first on, whose attention statistics are stored for each
     * token */
    size_t attention_requests;
    bool fisher;
    const char *fisher_file; /* file for squared gradients; NULL means the file of -o */
    size_t fisher_rows; /* number of first tokens whose squared gradients are stored one by one */
    /* [n_snapshots] numbers of tokens, rising, after which second moments of Q, K and V are
     * saved */
    size_t *snapshots;
    size_t n_snapshots;
    /* range of recorded layers; last_layer = -1 means the model's last layer */
    int first_layer, last_layer;
    kvd_dtype dtype;
    kvd_dtype compute; /* number type of the pass on a GPU: KVD_F32 or KVD_BF16 */
    int gpus;          /* number of GPUs; 0 if not given, or on the CPU */
    const char *label;
    bool resume;
    double save_every; /* seconds between two saves for --resume */
} kvd_collect_options;

/* Parses the command line into zeroed *cfg. Wrong usage exits with status 2. */
void kvd_collect_parse(int argc, char **argv, kvd_collect_options *cfg);
void kvd_collect_options_release(kvd_collect_options *cfg);

/* Returns true if the file of -o holds Q, K and V, false if it holds only second moments, squared
 * gradients or attention statistics. */
bool kvd_collect_dumps(const kvd_collect_options *o);

enum { KVD_COLLECT_OUTPUTS = 4 };

void kvd_collect_output_names(const kvd_collect_options *o,
                              kvd_output_name name[KVD_COLLECT_OUTPUTS]);

typedef struct {
    const kvd_collect_options *cfg; /* options; --device is already `cpu` or `cuda` */
    const char *model, *corpus;     /* content hashes of the model and of the text */
    const char *label;
    /* number of tokens of the text whose hash is `corpus` */
    size_t n_tokens;
    int ranks;
    const char *gpu; /* name of the GPU; "" on the CPU */
} kvd_collect_facts;

/* Records all options in *run, and those that affect results also in *key. The caller must have set
 * run->threads. */
int kvd_collect_record(const kvd_collect_facts *f, kvd_run *run, kvd_run_key *key, kvd_err *err);

#endif
