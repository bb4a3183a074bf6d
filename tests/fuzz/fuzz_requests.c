/* Fuzzes the reader of request traces: accepted requests must be valid and in order of arrival. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "serving/requests.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_requests r;
    if (kvd_requests_parse(&r, "input", (const char *)bytes, len, &err)) {
        if (r.request || r.n)
            abort();
        return 0;
    }
    const uint32_t most = (uint32_t)1 << 31;
    for (size_t i = 0; i < r.n; i++) {
        const kvd_request *q = &r.request[i];
        if (!isfinite(q->arrival) || q->arrival < (i ? r.request[i - 1].arrival : 0) ||
            q->input < 1 || q->output < 1 || q->input > most || q->output > most)
            abort();
    }
    kvd_requests_release(&r);
    return 0;
}
