#include "formats/rows_json.h"

#include <math.h>

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *kvd_rows_json(const kvd_rows *r)
{
    json_t *const list = json_array();
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        json_t *const row = json_object();
        for (int c = 0; c < kvd_rows_columns(r); c++) {
            const kvd_column *const col = kvd_rows_column(r, c);
            json_object_set_new(row, col->name,
                                col->kind == KVD_COL_TEXT  ? json_string(kvd_rows_get_text(r, i, c))
                                : col->kind == KVD_COL_INT ? json_integer(kvd_rows_get_int(r, i, c))
                                                           : real(kvd_rows_get_real(r, i, c)));
        }
        json_array_append_new(list, row);
    }
    return list;
}
