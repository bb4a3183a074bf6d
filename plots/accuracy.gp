# Quality against overall p. csv: series, overall_p, top1_share, _lo, _hi, perplexity_ratio, _lo, _hi, kl, _lo, _hi
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
do for [i=1:n] { found = 0; stats csv skip 1 using (tally(strcol(1) eq word(names, i))) nooutput; is_grid = is_grid.(found > 40 ? ' 1' : ' 0') }
rows = key_rows(3)
foot = (67 + 19.0*rows)/height
set xrange [0:*]
set offsets 0, graph 0.03, 0, 0
set xtics 0.2
set mxtics 2
unset key
set multiplot
do for [c=1:3] {
  set lmargin at screen (c-1)*0.333 + 0.062
  set rmargin at screen c*0.333 - 0.012
  set tmargin at screen 1 - 38.0/height
  set bmargin at screen foot
  set title (c == 1 ? 'top-1 accuracy / uncompressed' : c == 2 ? 'perplexity / uncompressed' : 'KL divergence, nats') offset 0,-0.5
  set xlabel 'overall p (fraction removed)' offset 0,0.3
  unset arrow
  if (c == 1) { unset logscale y; set yrange [*:*]; set arrow 1 from graph 0, first 0.99 to graph 1, first 0.99 nohead dt 2 lc rgb '#7f7f7f' lw 1.2 back }
  if (c == 2) { set logscale y; set yrange [1:*]; set ytics (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000) }
  if (c == 3) { set ytics autofreq; set logscale y; set yrange [*:*]; set format y '%g' }
  k = 3*c
  ok = 0
  stats csv skip 1 using ((c == 1 || column(k) > 0) ? count(0) : 0) nooutput
  if (ok > 0) {
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && (c == 1 || column(k) > 0) ? $2 : NaN):k+1:(0):(column(k+2) - column(k+1)) with vectors nohead lt i lw 0.8 dt 1 notitle, \
         for [i=1:n] csv skip 1 using (line(i) && strcol(1) eq word(names, i) && (c == 1 || column(k) > 0) ? $2 : NaN):k with linespoints lt i, \
         for [i=1:n] csv skip 1 using (!line(i) && strcol(1) eq word(names, i) && (c == 1 || column(k) > 0) ? $2 : NaN):k with points lt i
  } else {
    unset logscale
    set label 9 'no values to draw' at graph 0.5, graph 0.5 center
    plot [0:1] [0:1] NaN notitle
    unset label 9
  }
}
@key_below
unset multiplot
