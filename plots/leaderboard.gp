# Mean score of tasks against bytes. csv: series, free_cache_share, free_read_share, score, _lo, _hi, fronts. With steps=1: against the second column, ms.
# With models=1 the column after them, model, is in the titles of the panels.
panels = exists('steps') ? 1 : 2
model = ''
if (exists('models')) { stats csv skip 1 using (model = strcol(8), 0) nooutput }
head = model eq '' ? 39.0 : 57.0
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
set angles degrees
unset key
# Names on the front are at 40 degrees. The axis ends above the highest of them, but leaves 70 % of the panel to the scores.
letter = 7.3
high(s) = (letter*strlen(s)*sin(40) + 8)/(height - head - foot*height)
needed(s, y) = (5 + y)/(1 - (high(s) < 0.3 ? high(s) : 0.3))
top = 127
ends(f, s, y) = f > 0 && finite(y) && needed(s, y) > top ? (top = needed(s, y), 1) : 0
stats csv skip 1 using (ends($7, strcol(1), $4)) nooutput
set yrange [0:top]
set ytics 0, 20, 100
set xtics (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# A method has one label, at the first of its points on the front: tell() collects names and places, nearest(m) is the first place from the left after those in `placed`.
tell(s, on, x, y) = on && finite(x) && strstrt(told, '"'.s.'"') == 0 ? (told = told.' "'.s.'"', places_x = places_x.sprintf(' %.9g', x), places_y = places_y.sprintf(' %.9g', y), 1) : 0
free(j) = strstrt(placed, sprintf('<%d>', j)) == 0
nearest(j, best) = j > words(told) ? best : nearest(j + 1, free(j) && (best == 0 || word(places_x, j) + 0 < word(places_x, best) + 0) ? j : best)
set multiplot
do for [c=1:panels] {
  set lmargin at screen (c-1)*1.0/panels + 0.055
  set rmargin at screen c*1.0/panels - 0.015
  set tmargin at screen 1 - head/height
  set bmargin at screen foot
  set title (model eq '' ? '' : model."\n").(panels == 1 ? 'mean score, %, against the time of a step' : c == 1 ? 'mean score, %, against bytes stored' : 'mean score, %, against bytes that a step reads') offset 0,-0.5
  set xlabel (panels == 1 ? 'milliseconds' : c == 1 ? 'bytes stored / uncompressed' : 'bytes read / uncompressed') offset 0,0.3
  k = c + 1
  front(f) = (int(f)/(2**(c-1)))%2 == 1
  unset label; unset arrow
  told = ''; places_x = ''; places_y = ''; placed = ''; at_x = ''; at_y = ''; at_length = ''
  @no_span
  stats csv skip 1 using (column(k) > 0 ? span(column(k)) : 0) nooutput
  if (ok > 0) {
    set xrange [lowest/1.1:(panels == 1 || highest > 1.1 ? highest : 1.1)*1.05]
    right = (panels == 1 || highest > 1.1 ? highest : 1.1)*1.05
    on(f, x) = front(f) && x > 0
    stats csv skip 1 using (tell(strcol(1), on($7, column(k)), column(k), $4)) nooutput
    # Pixels of a factor of e and of a point of score. A name that would cross an earlier one moves sideways, with a line to its point.
    per_x = 0.93*width/panels/log(right*1.1/lowest)
    per_y = (height - head - foot*height)/top
    do for [m=1:words(told)] {
      j = nearest(1, 0)
      placed = placed.sprintf('<%d>', j)
      x = word(places_x, j) + 0
      y = word(places_y, j) + 0
      long = letter*strlen(word(told, j))
      at = log(x)*per_x
      do for [pass=1:2] {
        do for [q=1:m-1] {
          right_of = at - word(at_x, q)
          above = (y - word(at_y, q))*per_y
          along = right_of*cos(40) + above*sin(40)
          if (abs(right_of*sin(40) - above*cos(40)) < 14 && along < word(at_length, q) + 0 && along > -long) {
            left = word(at_x, q) + (above*cos(40) - 14.01)/sin(40)
            at = above > 10 && left > log(x)*per_x - 14 ? left : word(at_x, q) + (14.01 + above*cos(40))/sin(40)
          }
        }
      }
      set label m word(told, j) at exp(at/per_x), y + 5 rotate by 40 left font ',12' front
      set arrow m from x, y to exp(at/per_x), y + 4 nohead lc rgb '#7f7f7f' lw 0.6 front
      at_x = at_x.sprintf(' %.9g', at); at_y = at_y.sprintf(' %.9g', y); at_length = at_length.sprintf(' %.9g', long)
    }
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && column(k) > 0 ? column(k) : NaN):4 with linespoints lc rgb hue(i) pt shape(i) dt dash(i) lw thick ps size, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):4 smooth unique with lines lc rgb '#7f7f7f' lw 1.6 dt 2 notitle, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):5:(0):($6 - $5) with vectors nohead lc rgb '#7f7f7f' lw 0.9 notitle, \
         csv skip 1 using (on($7, column(k)) ? column(k) : NaN):4 with points pt 6 ps ring lc rgb '#7f7f7f' lw 1.4 notitle
  } else {
    @no_values
  }
}
@key_below
unset multiplot
