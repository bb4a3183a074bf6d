#include "model/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int kvd_filemap_load(kvd_filemap *m, const char *path, kvd_err *err)
{
    int status = -1;
    struct stat st;
    *m = (kvd_filemap){.bytes = "", .len = 0};
    /* O_NONBLOCK: a pipe without a writer must be refused below, not waited for. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    if (fstat(fd, &st)) {
        kvd_fail_errno(err, "cannot stat '%s'", path);
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        kvd_fail(err, "'%s' is %s, not a regular file", path, S_ISDIR(st.st_mode) ? "a folder" : "special");
        goto done;
    }
    if ((uintmax_t)st.st_size > SIZE_MAX) {
        kvd_fail(err, "'%s': %jd bytes do not fit in the address space", path, (intmax_t)st.st_size);
        goto done;
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            kvd_fail_errno(err, "cannot map '%s' (%jd bytes)", path, (intmax_t)st.st_size);
            goto done;
        }
        m->bytes = p;
        m->len = (size_t)st.st_size;
        /* Layers are read front to back. Only advice, so a refusal changes nothing. */
        (void)madvise(p, m->len, MADV_SEQUENTIAL);
    }
    status = 0;
done:
    (void)close(fd); /* opened for reading only: nothing is lost */
    return status;
}

void kvd_filemap_release(kvd_filemap *m)
{
    if (m->len > 0)
        (void)munmap((void *)(uintptr_t)m->bytes, m->len);
    *m = (kvd_filemap){0};
}
