/*
 * Layout of files of recorded Q, K and V, in memory and on disk. Shared by activations.c, which
 * reads the files, and activations_write.c.
 */
#ifndef KVD_FORMATS_ACTIVATIONS_INTERNAL_H
#define KVD_FORMATS_ACTIVATIONS_INTERNAL_H

#include <sys/types.h>

#include "formats/activations.h"

/* Datasets below /tokens (id, sequence number, position), numbered from KVD_SET_TOKEN. */
enum { TOKEN_ID, TOKEN_SEQUENCE, TOKEN_POSITION, N_TOKEN };

/* HDF5 path of each dataset that has checksums. */
extern const char *const kvd_activations_path[KVD_N_SETS];

/* Returns the HDF5 type of elements of type t. */
hid_t kvd_activations_type(kvd_dtype t);
/*
 * Returns true if the file has this dataset (index of a tensor, weight or token dataset). Q and K
 * before RoPE exist only with --rope both.
 */
bool kvd_activations_has(const kvd_activations *a, int set);
/*
 * Returns the path, type and shape that dataset number `set` must have in a file with the sizes in
 * *a.
 */
kvd_h5_spec kvd_activations_spec(const kvd_activations *a, int set);

/* Marks all datasets of *a as closed and all checksums as absent, without freeing anything. */
void kvd_activations_forget(kvd_activations *a);
/* Closes the datasets of *a and frees the checksums; the file itself stays open. */
void kvd_activations_release(kvd_activations *a);
/* Closes the HDF5 object *id, if it is open, and sets *id to H5I_INVALID_HID. */
void kvd_activations_drop(hid_t *id);
/* Fills model, sizes and label of *a from the attributes of the open file a->file. */
int kvd_activations_describe(kvd_activations *a, kvd_err *err);

/* Sets a->fd to the file descriptor, and a->at to the file offsets of the contiguous tensors. */
void kvd_activations_locate(kvd_activations *a);
/* Returns the file offset in bytes of token `first` of one head of tensor x. */
off_t kvd_activations_place(const kvd_activations *a, kvd_x x, int layer, int head, size_t first);

/*
 * Selects the vectors of all tokens for one head of a tensor (or the rows of a weight matrix), or
 * all elements of a dataset below /tokens.
 */
typedef struct {
    kvd_activations *a;
    int set, layer, head;
    hid_t dataset; /* open HDF5 dataset; unused if its file offset is known */
} kvd_head_rows;

/*
 * Reads n rows, beginning at row `first`, in the file's element type without verifying checksums.
 * `ctx` is a kvd_head_rows (dataset, layer and head), passed through by kvd_checksums_verify.
 */
int kvd_activations_read_raw(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

#endif
