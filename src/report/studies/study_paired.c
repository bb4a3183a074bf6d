/* Section of the report: compares one method with every other method on the same sequences, by KL
 * divergence and cache bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "report/studies/studies.h"

enum { DRAWS = KVD_PAIRED_DRAWS };

/* KL divergence, in nats per token, at which the cache bytes of two methods are compared */
static const double equal_kl = 0.01;

/* Returns the mean KL divergence per prediction over n sequences. Sequence s counts times[s] times,
 * or once if `times` is NULL. */
static double mean_kl(const double *kl, const double *predictions, const size_t *times, size_t n)
{
    double sum = 0, count = 0;
    for (size_t s = 0; s < n; s++) {
        const double weight = times ? (double)times[s] : 1;
        sum += weight * kl[s];
        count += weight * predictions[s];
    }
    return sum / count;
}

/* Returns the cache bytes at which a method has mean KL divergence `wanted`, interpolated over log
 * KL, or NaN unless results are on both sides of `wanted`. times [n]: how often each sequence
 * counts; NULL: once. */
static double bytes_at(const kvd_paired_curve *c, const double *predictions, const size_t *times,
                       size_t n, double wanted)
{
    const double least = 1e-12; /* rounding can make the KL of a lossless setting 0 or negative */
    double before = NAN;
    for (size_t i = 0; i < c->n; i++) {
        const double kl = log(fmax(mean_kl(c->setting[i].kl, predictions, times, n), least));
        if (kl > log(wanted))
            return i ? c->setting[i - 1].bytes + (c->setting[i].bytes - c->setting[i - 1].bytes) *
                                                     (log(wanted) - before) / (kl - before)
                     : NAN;
        before = kl;
    }
    return NAN;
}

int kvd_paired_bytes_at(const kvd_paired_curve *a, const kvd_paired_curve *b,
                        const double *predictions, size_t n, double kl, kvd_paired_bytes *out,
                        kvd_err *err)
{
    kvd_interval *const ends[] = {&out->a, &out->b, &out->ratio};
    *out = (kvd_paired_bytes){.n_reached = 0};
    double *const x = malloc(3 * DRAWS * sizeof *x);
    size_t *const times = malloc(n * sizeof *times);
    if (!x || !times) {
        free(x);
        free(times);
        return kvd_no_memory(err, "draws of sequences", 3 * DRAWS * sizeof *x);
    }
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (size_t k = 0; k < DRAWS; k++) {
        memset(times, 0, n * sizeof *times);
        for (size_t s = 0; s < n; s++)
            times[kvd_rng_below(&r, n)]++;
        x[k] = bytes_at(a, predictions, times, n, kl);
        x[DRAWS + k] = bytes_at(b, predictions, times, n, kl);
        x[2 * DRAWS + k] = x[k] / x[DRAWS + k];
        out->n_reached += isnan(x[2 * DRAWS + k]) ? 0 : 1;
    }
    out->a.value = bytes_at(a, predictions, NULL, n, kl);
    out->b.value = bytes_at(b, predictions, NULL, n, kl);
    out->ratio.value = out->a.value / out->b.value;
    for (size_t i = 0; i < 3; i++) {
        const bool enough = n >= KVD_BOOTSTRAP_CLUSTERS;
        ends[i]->lo = enough ? kvd_quantile(x + i * DRAWS, DRAWS, 0.025) : (double)NAN;
        ends[i]->hi = enough ? kvd_quantile(x + i * DRAWS, DRAWS, 0.975) : (double)NAN;
    }
    free(x);
    free(times);
    return 0;
}

static int by_falling_bytes(const void *a, const void *b)
{
    const double x = ((const kvd_paired_setting *)a)->bytes,
                 y = ((const kvd_paired_setting *)b)->bytes;
    return (x < y) - (x > y);
}

/* Selects the results of `file` among results first .. last, and copies them into *c, largest cache
 * first. The caller frees c->setting. */
static int curve_of(const kvd_accuracy_entries *all, size_t first, size_t last,
                    const kvd_result *file, kvd_paired_curve *c, kvd_err *err)
{
    const kvd_accuracy_result *const a = &file->accuracy;
    *c = (kvd_paired_curve){.setting = malloc((last - first + 1) * sizeof *c->setting)};
    if (!c->setting)
        return kvd_no_memory(err, "settings of a method", (last - first + 1) * sizeof *c->setting);
    for (size_t i = first; i <= last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double bytes = kvd_entry_real(e, "cache_share");
        if (e->file == file && a->sequence_kl && !kvd_entry_is_search_point(e) && !isnan(bytes) &&
            !isnan(kvd_entry_real(e, "kl")))
            c->setting[c->n++] =
                (kvd_paired_setting){bytes, a->sequence_kl + e->row * a->n_sequences, e};
    }
    qsort(c->setting, c->n, sizeof *c->setting, by_falling_bytes);
    return 0;
}

typedef struct {
    const char *method; /* method compared with all others */
    kvd_table *settings, *bytes;
} tables;

static void begin(tables *t, kvd_section *s)
{
    t->settings = kvd_section_table(s, "paired",
                                    "Difference of KL between two methods on the same sequences");
    t->bytes = kvd_section_table(s, "paired-bytes", "Bytes of two methods at equal KL");
    kvd_table *const x = t->settings, *const y = t->bytes;
    char heading[KVD_LABEL + 24];
    snprintf(heading, sizeof heading, "bytes of %s", t->method);
    kvd_table_add_column(x, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(x, KVD_CELL_TEXT, 0, "other", "other method");
    kvd_table_add_column(x, KVD_CELL_TEXT, 0, "other_setting", "at");
    kvd_table_add_column(x, KVD_CELL_REAL, 3, "other_share", "other's bytes");
    kvd_table_add_column(x, KVD_CELL_REAL, 3, "other_kl", "other's KL, nat");
    kvd_table_add_column(x, KVD_CELL_TEXT, 0, "setting", t->method);
    kvd_table_add_column(x, KVD_CELL_REAL, 3, "cache_share", heading);
    kvd_table_add_column(x, KVD_CELL_REAL, 3, "kl", "KL, nat");
    kvd_table_add_interval(x, 3, "difference", "KL less the other's, nat");
    kvd_table_note(
        x,
        "Bytes over those of an uncompressed 16-bit cache. Every setting of every other method "
        "next to the setting of %s with the most bytes that does not take more bytes, or else "
        "with the fewest. 95 %% intervals over %d draws of sequences, the same for both.",
        t->method, (int)DRAWS);
    kvd_table_add_column(y, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(y, KVD_CELL_TEXT, 0, "other", "other method");
    kvd_table_add_interval(y, 3, "other_share", "other's bytes");
    kvd_table_add_interval(y, 3, "cache_share", heading);
    kvd_table_add_interval(y, 3, "ratio", "ratio to the other's");
    kvd_table_add_column(y, KVD_CELL_TEXT, 0, "reached", "reached");
    kvd_table_note(
        y,
        "Bytes over those of an uncompressed 16-bit cache at a KL of %g nats, linear in the "
        "logarithm of KL between measured settings, never beyond them. 95 %% intervals over %d "
        "draws of sequences, the same for both; none if a draw does not reach the KL.",
        equal_kl, (int)DRAWS);
}

/* Returns the method's largest cache of at most `bytes` or, if all its caches are larger, the
 * smallest one. */
static const kvd_paired_setting *within(const kvd_paired_curve *c, double bytes)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->setting[i].bytes <= bytes)
            return &c->setting[i];
    return &c->setting[c->n - 1];
}

static int settings_row(kvd_table *t, const kvd_paired_setting *mine,
                        const kvd_paired_setting *other, double *difference, kvd_err *err)
{
    const kvd_accuracy_result *const a = &mine->entry->file->accuracy;
    char text[100];
    kvd_interval d;
    for (size_t s = 0; s < a->n_sequences; s++)
        difference[s] = mine->kl[s] - other->kl[s];
    if (kvd_bootstrap_ratio(difference, a->sequence_n, a->n_sequences, DRAWS, 1, &d, err))
        return -1;
    kvd_table_text(t, kvd_entry_text(mine->entry, "label"));
    kvd_table_text(t, other->entry->series);
    kvd_entry_setting(other->entry, text, sizeof text);
    kvd_table_text(t, text);
    kvd_table_real(t, other->bytes);
    kvd_table_real(t, kvd_entry_real(other->entry, "kl"));
    kvd_entry_setting(mine->entry, text, sizeof text);
    kvd_table_text(t, text);
    kvd_table_real(t, mine->bytes);
    kvd_table_real(t, kvd_entry_real(mine->entry, "kl"));
    kvd_table_bounded(t, d);
    return 0;
}

static int bytes_row(const tables *t, const kvd_paired_curve *mine, const kvd_paired_curve *other,
                     kvd_err *err)
{
    const kvd_accuracy_entry *const e = other->setting[0].entry;
    const kvd_accuracy_result *const a = &e->file->accuracy;
    kvd_paired_bytes x;
    char reached[KVD_LABEL + 40];
    if (kvd_paired_bytes_at(mine, other, a->sequence_n, a->n_sequences, equal_kl, &x, err))
        return -1;
    if (isnan(x.ratio.value))
        snprintf(reached, sizeof reached, "not reached by %s",
                 !isnan(x.a.value)  ? e->series
                 : isnan(x.b.value) ? "either"
                                    : t->method);
    else
        snprintf(reached, sizeof reached, "in %zu of %d draws", x.n_reached, (int)DRAWS);
    kvd_table_text(t->bytes, kvd_entry_text(e, "label"));
    kvd_table_text(t->bytes, e->series);
    kvd_table_bounded(t->bytes, x.b);
    kvd_table_bounded(t->bytes, x.a);
    kvd_table_bounded(t->bytes, x.ratio);
    kvd_table_text(t->bytes, reached);
    return 0;
}

static int add_other(const kvd_accuracy_entries *all, size_t first, size_t last,
                     const kvd_result *file, const kvd_paired_curve *mine, const tables *t,
                     kvd_err *err)
{
    kvd_paired_curve other;
    int status = curve_of(all, first, last, file, &other, err);
    double *const difference = malloc(file->accuracy.n_sequences * sizeof *difference);
    if (!status && !difference)
        status = kvd_no_memory(err, "differences", file->accuracy.n_sequences * sizeof(double));
    for (size_t i = 0; !status && i < other.n; i++)
        status = settings_row(t->settings, within(mine, other.setting[i].bytes), &other.setting[i],
                              difference, err);
    if (!status && other.n)
        status = bytes_row(t, mine, &other, err);
    free(difference);
    free(other.setting);
    return kvd_status(status);
}

static int add_file(const kvd_accuracy_entries *all, size_t first, size_t last,
                    const kvd_result *file, const tables *t, kvd_err *err)
{
    kvd_paired_curve mine;
    int status = curve_of(all, first, last, file, &mine, err);
    for (size_t i = 0, end; !status && mine.n && i < all->n; i = end + 1) {
        const kvd_accuracy_entry *const e = &all->item[i];
        end = all->item[i].last;
        if (i != first && !kvd_entry_is_none(e) &&
            !strcmp(kvd_entry_text(e, "label"), kvd_entry_text(&all->item[first], "label")))
            status = add_other(all, i, end, file, &mine, t, err);
    }
    free(mine.setting);
    return kvd_status(status);
}

int kvd_study_paired(const kvd_accuracy_entries *all, const char *method, kvd_section *s,
                     kvd_err *err)
{
    tables t = {.method = method};
    if (!method)
        return 0;
    begin(&t, s);
    for (size_t first = 0, last; first < all->n; first = last + 1) {
        last = all->item[first].last;
        for (size_t i = first;
             i <= last && !strcmp(kvd_entry_text(&all->item[i], "method"), method); i++) {
            bool again = false;
            for (size_t j = first; j < i; j++)
                again = again || all->item[j].file == all->item[i].file;
            if (!again && add_file(all, first, last, all->item[i].file, &t, err))
                return -1;
        }
    }
    if (!t.bytes->n_rows && !s->failed)
        return kvd_fail(err, "--paired: no accuracy file has '%s' and another method", method);
    return 0;
}
