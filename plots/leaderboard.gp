# Mean score of tasks against bytes. csv: series, free_cache_share, free_read_share, score, _lo, _hi, fronts. With steps=1: against the second column, ms.
panels = exists('steps') ? 1 : 2
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
points = STATS_records
rows = key_rows(6)
foot = (84 + 20.0*rows)/height
ring = 1.3
# Many methods have thin lines, because the front is what matters.
thick = points > 120 ? 0.6 : 1
size = points > 120 ? 0.4 : 0.6
set logscale x
unset key
set yrange [0:127]
set ytics 0, 20, 100
set xtics (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# A method has one label, at the first of its points on the front.
labelled = ''
label_of(s, on) = on && strstrt(labelled, '"'.s.'"') == 0 ? (labelled = labelled.'"'.s.'"', s) : ''
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
  labelled = ''
  @no_span
  stats csv skip 1 using (column(k) > 0 ? span(column(k)) : 0) nooutput
  if (ok > 0) {
    set xrange [lowest/1.1:(panels == 1 || highest > 1.1 ? highest : 1.1)*1.05]
    on(f, x) = front(f) && x > 0
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && column(k) > 0 ? column(k) : NaN):4 with linespoints lc rgb hue(i) pt shape(i) dt dash(i) lw thick ps size, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):4 smooth unique with lines lc rgb '#7f7f7f' lw 1.6 dt 2 notitle, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):5:(0):($6 - $5) with vectors nohead lc rgb '#7f7f7f' lw 0.9 notitle, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):4 with points pt 6 ps ring lc rgb '#7f7f7f' lw 1.4 notitle, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):($4 + 4):(label_of(strcol(1), on($7, column(k)))) with labels rotate by 40 left font ',12' notitle
  } else {
    @no_values
  }
}
@key_below
unset multiplot
