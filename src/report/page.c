#include "report/page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/output.h"
#include "common/run.h"

/* Colours are variables with two sets of values; gnuplot's black becomes the ink of the page. */
static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#1c1f23;--soft:#5a6370;--line:#d5dae0;--back:#fff;--panel:#f5f7f9;--mark:#0072b2;"
    "--good:#00694b;--part:#8a5a00;--bad:#a83a00;--none:#5a6370}\n"
    "@media "
    "(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#a2abb6;--line:#3a4149;--back:#15181c;--panel:#"
    "1e2328;"
    "--mark:#56b4e9;--good:#3fc79a;--part:#e6b04c;--bad:#ff8a50;--none:#a2abb6}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:1.5rem 1.25rem 4rem;max-width:72rem;color:var(--ink);background:var(--back);"
    "font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.3rem;margin:2.6rem 0 "
    ".6rem;padding-top:.8rem;"
    "border-top:1px solid var(--line)}\n"
    "p{max-width:48rem}a{color:var(--mark)}nav{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.8rem 0 "
    "1.2rem}\n"
    "code{font:.92em ui-monospace,'DejaVu Sans Mono',monospace}\n"
    ".wide{overflow-x:auto;margin:1.4rem 0 .3rem}\n"
    "table{border-collapse:collapse;font-size:.86rem;line-height:1.4;font-variant-numeric:tabular-nums}\n"
    "caption{min-width:40rem;caption-side:top;text-align:left;font-weight:600;padding:0 0 "
    ".4rem;font-size:.95rem}\n"
    "th,td{padding:.3rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}\n"
    "th{font-weight:600;vertical-align:bottom;border-bottom:2px solid var(--line)}\n"
    ".k{white-space:nowrap}.n{text-align:right;white-space:nowrap}th.n{white-space:normal}\n"
    ".shade{background:color-mix(in srgb,var(--mark) calc(var(--s)*.55),transparent)}\n"
    ".note{font-size:.86rem;color:var(--soft);margin:.3rem 0 "
    "0}.files{font-size:.78rem;color:var(--soft);margin:.1rem 0 1.2rem}\n"
    "figure{margin:1.4rem 0;padding:1rem;background:var(--panel);border:1px solid "
    "var(--line);border-radius:6px}\n"
    "figure svg{display:block;width:100%;height:auto;max-width:58rem;margin:0 auto}\n"
    "figcaption{font-size:.88rem;margin-top:.6rem;max-width:52rem}\n"
    "figure svg [stroke='black']{stroke:var(--ink)}figure svg g[fill='black']{fill:var(--ink)}"
    "figure svg g[color='black']{color:var(--ink)}\n"
    ".v{font-weight:600;white-space:nowrap}.v0{color:var(--good)}.v1{color:var(--part)}.v2{color:var(--bad)}"
    ".v3{color:var(--none);font-weight:400}\n"
    ".ledger td:first-child{font-weight:600;min-width:6.5rem}.ledger tr:not(.sub) "
    "td{border-bottom:0;padding-top:.7rem}"
    ".ledger td:nth-child(2){min-width:16rem}.ledger td:nth-child(3){min-width:6.5rem}.ledger "
    "td:nth-child(4){min-width:15rem}"
    ".ledger .sub td{color:var(--soft);font-size:.8rem;padding:0 .7rem .7rem}.ledger .sub "
    "b{color:var(--ink);font-weight:500}\n"
    "#provenance td:last-child{min-width:24rem;overflow-wrap:anywhere}\n"
    "@media print{body{max-width:none}figure{break-inside:avoid}}\n";

/* The whole file, zero-terminated; the caller frees it. */
static char *slurp(const char *path, kvd_err *err)
{
    kvd_text t = {0};
    char buf[8192];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) {
        kvd_fail_errno(err, "cannot open '%s'", path);
        return NULL;
    }
    while ((n = fread(buf, 1, sizeof buf - 1, f)) > 0) {
        buf[n] = '\0';
        kvd_text_raw(&t, buf);
    }
    int bad = ferror(f);
    fclose(f);
    if (bad || kvd_text_check(&t, err)) {
        if (bad)
            kvd_fail_errno(err, "cannot read '%s'", path);
        kvd_text_release(&t);
        return NULL;
    }
    return t.s ? t.s : strdup("");
}

/* gnuplot uses the same ids in every file; in one page each figure needs its own, and so do references to
 * them. Ids are only renamed where gnuplot writes them: id='..', id="..", '#..' and (#..). */
static void put_svg(kvd_text *out, const char *svg, const char *name)
{
    const char *p = strstr(svg, "<svg");
    if (!p)
        return;
    while (*p) {
        static const char *const before[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
        size_t hit = 0;
        for (size_t i = 0; i < sizeof before / sizeof before[0] && !hit; i++)
            if (strncmp(p, before[i], strlen(before[i])) == 0)
                hit = strlen(before[i]);
        if (hit) {
            kvd_text_add(out, "%.*s%s-", (int)hit, p, name);
            p += hit;
        } else {
            size_t n = 1 + strcspn(p + 1, " hu");
            kvd_text_add(out, "%.*s", (int)n, p);
            p += n;
        }
    }
}

static int put_figure(kvd_text *out, const kvd_figure *f, bool drawn, const char *dir, kvd_err *err)
{
    char *path = NULL;
    kvd_text_raw(out, "<figure>\n");
    if (drawn) {
        if (asprintf(&path, "%s/figures/%s.svg", dir, f->name) < 0)
            return kvd_no_memory(err, "a path", 0);
        char *svg = slurp(path, err);
        free(path);
        if (!svg)
            return -1;
        put_svg(out, svg, f->name);
        free(svg);
    } else {
        kvd_text_raw(out, "<p class=\"note\">Not drawn (--no-plots); the data are in tables/.</p>\n");
    }
    kvd_text_raw(out, "<figcaption>");
    kvd_text_html(out, f->caption);
    if (drawn)
        kvd_text_add(out, " <span class=\"files\">%s.svg, %s.png in figures/</span>", f->name, f->name);
    kvd_text_raw(out, "</figcaption>\n</figure>\n");
    return 0;
}

int kvd_page_write(const kvd_report *r, const char *title, const kvd_table *headline, bool figures,
                   const char *dir, kvd_err *err)
{
    kvd_text page = {0};
    char *path = NULL;
    int status = -1;

    kvd_text_raw(&page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    kvd_text_html(&page, title);
    kvd_text_add(&page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", style);
    kvd_text_html(&page, title);
    kvd_text_raw(&page, "</h1>\n<nav>");
    for (size_t i = 0; i < r->n; i++)
        kvd_text_add(&page, "<a href=\"#%s\">%s</a>", r->section[i]->id, r->section[i]->title);
    kvd_text_raw(&page, "</nav>\n");
    if (headline)
        kvd_table_html(headline, &page);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_section *s = r->section[i];
        kvd_text_add(&page, "<section id=\"%s\">\n<h2>%s</h2>\n", s->id, s->title);
        kvd_text_raw(&page, kvd_text_get(&s->words));
        for (size_t j = 0; j < s->n_figures; j++)
            if (put_figure(&page, &s->figure[j], figures, dir, err))
                goto done;
        for (size_t j = 0; j < s->n_tables; j++)
            if (!s->table[j]->only_files)
                kvd_table_html(s->table[j], &page);
        kvd_text_raw(&page, "</section>\n");
    }
    kvd_text_add(&page, "<p class=\"files\">kvdim-report %s</p>\n</body>\n</html>\n", kvd_git_revision());
    if (kvd_text_check(&page, err))
        goto done;
    if (asprintf(&path, "%s/index.html", dir) < 0) {
        path = NULL;
        kvd_no_memory(err, "a path", 0);
        goto done;
    }
    status = kvd_output_text(path, kvd_text_get(&page), page.len, err);
done:
    free(path);
    kvd_text_release(&page);
    return status;
}
