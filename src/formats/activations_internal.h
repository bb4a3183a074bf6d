/* Layout of activations files, in memory and on disk: for activations.c, activations_write.c. */
#ifndef KVD_FORMATS_ACTIVATIONS_INTERNAL_H
#define KVD_FORMATS_ACTIVATIONS_INTERNAL_H

#include <sys/types.h>

#include "formats/activations.h"

/* Datasets below /tokens, counted from KVD_SET_TOKEN. */
enum { TOKEN_ID, TOKEN_SEQUENCE, TOKEN_POSITION, N_TOKEN };

/* Path of each dataset with checksums. */
extern const char *const kvd_activations_path[KVD_N_SETS];

/* Returns the HDF5 type of tensors of dtype t. */
hid_t kvd_activations_type(kvd_dtype t);
/* Returns true if the file has this dataset. Q and K before RoPE exist only with --rope both. */
bool kvd_activations_has(const kvd_activations *a, int set);
/* Describes the path, type and shape that one dataset of *a must have. */
kvd_h5_spec kvd_activations_spec(const kvd_activations *a, int set);

/* Marks all datasets as closed and all checksums as absent, without freeing anything. */
void kvd_activations_forget(kvd_activations *a);
/* Closes datasets and frees checksums; the file stays open. */
void kvd_activations_release(kvd_activations *a);
/* Closes *id, if it is open, and sets it to H5I_INVALID_HID. */
void kvd_activations_drop(hid_t *id);
/* Fills *a from the open file a->file. */
int kvd_activations_describe(kvd_activations *a, kvd_err *err);

/* Fills a->fd, and a->at of the tensors that are contiguous in the file. */
void kvd_activations_locate(kvd_activations *a);
/* Returns the file offset of row `first` of a head. */
off_t kvd_activations_place(const kvd_activations *a, kvd_x x, int layer, int head, size_t first);

/* Describes the rows of one head of a dataset, or all rows of a dataset below /tokens. */
typedef struct {
    kvd_activations *a;
    int set, layer, head;
    hid_t dataset; /* open dataset; unused if the file offset is known */
} kvd_head_rows;

/*
 * Reads n rows from `first` on in the dtype of the file, without verifying their checksums. `ctx`
 * is a kvd_head_rows, as kvd_checksums_verify passes it.
 */
int kvd_activations_read_raw(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

#endif
