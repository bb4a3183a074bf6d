# Mean score of tasks against bytes. csv: series, free_cache_share, free_read_share, score, _lo, _hi, fronts. With steps=1: against the second column, ms.
panels = exists('steps') ? 1 : 2
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
rows = key_rows(6)
foot = (84 + 20.0*rows)/height
ring = 1.3
set logscale x
unset key
set yrange [0:105]
set xtics (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
set multiplot
do for [c=1:panels] {
  set lmargin at screen (c-1)*1.0/panels + 0.055
  set rmargin at screen c*1.0/panels - 0.015
  set tmargin at screen 1 - 39.0/height
  set bmargin at screen foot
  set title (panels == 1 ? 'mean score, %, against the time of a step' : c == 1 ? 'mean score, %, against bytes stored' : 'mean score, %, against bytes that a step reads') offset 0,-0.5
  set xlabel (panels == 1 ? 'milliseconds' : c == 1 ? 'bytes stored / uncompressed' : 'bytes read / uncompressed') offset 0,0.3
  k = c + 1
  front(f) = (int(f)/(2**(c-1)))%2 == 1
  @no_span
  stats csv skip 1 using (column(k) > 0 ? span(column(k)) : 0) nooutput
  if (ok > 0) {
    set xrange [lowest/1.1:(panels == 1 || highest > 1.1 ? highest : 1.1)*1.05]
    plot csv skip 1 using (front($7) && column(k) > 0 ? column(k) : NaN):5:(0):($6 - $5) with vectors nohead lc rgb '#7f7f7f' lw 0.9 notitle, \
         for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && column(k) > 0 ? column(k) : NaN):4 with linespoints @look, \
         csv skip 1 using (front($7) && column(k) > 0 ? column(k) : NaN):4 with points pt 6 ps ring lc rgb '#7f7f7f' lw 1.4 notitle
  } else {
    @no_values
  }
}
@key_below
unset multiplot
