/* Reads what kvdim-similarity writes. */
#ifndef KVD_REPORT_SIMILARITY_FILE_H
#define KVD_REPORT_SIMILARITY_FILE_H

#include "report/results.h"

/* f is open. Fails on missing datasets, on shapes that do not agree and on numbers that are not finite. */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
