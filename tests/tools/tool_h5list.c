/* usage: tool_h5list FILE.h5
 *
 * Lists the contents of a file, for comparison with docs/formats.md.
 *
 * dataset|PATH|[axis][axis]|TYPE|UNITS
 * attribute|OBJECT|NAME|TYPE            except long_name, units and axes
 * bad|PATH|WHY                          dataset without long_name, units or axis names */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/h5.h"

enum { ROOM = 512 };

static const char *type_name(hid_t t)
{
    const struct {
        hid_t type;
        const char *name;
    } known[] = {{kvd_h5_type_f16(), "float16"}, {kvd_h5_type_bf16(), "bfloat16"},
                 {H5T_IEEE_F32LE, "float32"},    {H5T_IEEE_F64LE, "float64"},
                 {H5T_STD_I32LE, "int32"},       {H5T_STD_I64LE, "int64"},
                 {H5T_STD_U32LE, "uint32"},      {H5T_STD_U64LE, "uint64"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (H5Tequal(t, known[i].type) > 0)
            return known[i].name;
    return H5Tget_class(t) == H5T_STRING && H5Tis_variable_str(t) == 0 ? "text" : "other";
}

/* Reads a text attribute into `text`, or "" if the attribute is missing or too long. */
static void text_of(hid_t object, const char *name, char text[ROOM])
{
    memset(text, 0, ROOM);
    if (H5Aexists(object, name) <= 0)
        return;
    const hid_t a = H5Aopen(object, name, H5P_DEFAULT), t = H5Aget_type(a);
    if (H5Tget_class(t) != H5T_STRING || H5Tget_size(t) >= ROOM || H5Aread(a, t, text) < 0)
        text[0] = '\0';
    H5Tclose(t);
    H5Aclose(a);
}

/* Writes the names of a dataset's axes, such as "[layer][dim]", to `text`, or "" if a name is
 * missing. */
static void axes_of(hid_t dataset, char text[ROOM])
{
    char *label[KVD_MAX_RANK] = {NULL};
    const hid_t space = H5Dget_space(dataset);
    const int rank = H5Sget_simple_extent_ndims(space);
    H5Sclose(space);
    snprintf(text, ROOM, "%s", rank == 0 ? "[]" : "");
    if (rank < 1 || rank > KVD_MAX_RANK || H5Aexists(dataset, "DIMENSION_LABELS") <= 0)
        return;
    const hid_t a = H5Aopen(dataset, "DIMENSION_LABELS", H5P_DEFAULT), t = H5Aget_type(a),
                s = H5Aget_space(a);
    const int named = H5Sget_simple_extent_npoints(s) == rank && H5Aread(a, t, label) >= 0;
    for (int i = 0; named && i < rank; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, ROOM - n, "[%s]", label[i]);
    }
    if (named)
        H5Dvlen_reclaim(t, s, H5P_DEFAULT, label);
    H5Sclose(s);
    H5Tclose(t);
    H5Aclose(a);
}

static herr_t list_attribute(hid_t object, const char *name, const H5A_info_t *info, void *path)
{
    (void)info;
    const char *const left_out[] = {"long_name", "units", "DIMENSION_LABELS", "DIMENSION_LIST"};
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (H5Iget_type(object) == H5I_DATASET && !strcmp(name, left_out[i]))
            return 0;
    const hid_t a = H5Aopen(object, name, H5P_DEFAULT), t = H5Aget_type(a);
    printf("attribute|%s|%s|%s\n", (const char *)path, name, type_name(t));
    H5Tclose(t);
    H5Aclose(a);
    return 0;
}

static int list_object(hid_t object, char *path)
{
    if (H5Iget_type(object) == H5I_DATASET) {
        char axes[ROOM], units[ROOM], long_name[ROOM];
        const hid_t t = H5Dget_type(object);
        axes_of(object, axes);
        text_of(object, "units", units);
        text_of(object, "long_name", long_name);
        printf("dataset|%s|%s|%s|%s\n", path, axes, type_name(t), units);
        if (!*axes || !*units || !*long_name)
            printf("bad|%s|%s\n", path, !*axes ? "axes" : !*units ? "units" : "long_name");
        H5Tclose(t);
    }
    return H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, NULL, list_attribute, path) < 0 ? -1 : 0;
}

static herr_t list_link(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    char path[ROOM];
    (void)info;
    (void)ctx;
    snprintf(path, sizeof path, "/%s", name);
    const hid_t object = H5Oopen(group, name, H5P_DEFAULT);
    /* true for a dimension scale, which holds only the indices of an axis and is not listed */
    const bool scale = object >= 0 && H5Iget_type(object) == H5I_DATASET &&
                       H5Aexists(object, "REFERENCE_LIST") > 0;
    const int status = object < 0 ? -1 : scale ? 0 : list_object(object, path);
    if (object >= 0)
        H5Oclose(object);
    return status;
}

int main(int argc, char **argv)
{
    char root[] = "/";
    if (argc != 2)
        return 2;
    const hid_t file = H5Fopen(argv[1], H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0)
        return 1;
    const hid_t top = H5Oopen(file, "/", H5P_DEFAULT);
    const int status =
        list_object(top, root) || H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, list_link, NULL) < 0;
    H5Oclose(top);
    H5Fclose(file);
    return status ? 1 : 0;
}
