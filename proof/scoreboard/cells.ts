// What each experiment's findings mean in one cell of the matrix. A cell that was not measured says so.
import type { Contender } from "./contenders.ts";
import type { Blocked, Cells, Kept, Results, Speed } from "./results.ts";
import { count, ratio, time, times } from "./wording.ts";

export const NOT_MEASURED = "not measured";
const AFTER_EACH = " after each death";

export interface Row {
  readonly title: string;
  cell(contender: Contender, results: Results): string;
}

/** A row whose cell comes from what was measured of that contender alone. */
function row(title: string, cell: (cells: Cells, contender: Contender) => string | undefined): Row {
  return {
    title,
    cell: (contender, { cells }) => cell(cells[contender.id] ?? {}, contender) ?? NOT_MEASURED,
  };
}

export const afterDeath: readonly Row[] = [
  killed("`kill -9` to rerun, at defaults", "default"),
  killed("`kill -9` to rerun, at its fastest settings", "fastest"),
  row(
    "a zombie completes the job of its new owner",
    ({ zombie }, contender) => zombie && (zombie.completed ? "**yes**" : "no") + pretended(zombie, contender),
  ),
  row("a zombie overwrites progress", ({ zombie }) => {
    if (!zombie) return undefined;
    if (zombie.note === null) return "has no progress";
    return zombie.noteStored ? "**yes**" : "no";
  }),
  row("a job that kills its worker: innocents of 19 that end badly", ({ poison }, contender) => {
    if (!poison) return undefined;
    const { done, failed, open } = poison.innocents;
    const badly = open > 0 ? `**${failed}, and ${open} never got through**` : failed > 0 ? `**${failed}**` : "0";
    return `${badly}, ${done} done${pretended(poison, contender, AFTER_EACH)}`;
  }),
  row("a job that kills its worker: deaths until it stops", ({ poison }, contender) => {
    if (!poison) return undefined;
    const { deaths, stopped, tookMs } = poison;
    const told = stopped ? `${deaths}` : `**did not stop**: ${deaths} in ${time(tookMs)}`;
    return told + pretended(poison, contender, AFTER_EACH);
  }),
  row("SIGTERM in the middle of a job of 50 s", ({ sigterm }) => {
    if (!sigterm) return undefined;
    const exit = sigterm.exitedAfterMs === null ? "still there" : `exit after ${time(sigterm.exitedAfterMs)}`;
    if (sigterm.ended) {
      const finished = "the handler finished";
      const told = sigterm.stateAtExit === "done" ? finished : `**${finished}, and the store does not know**`;
      return `${exit}: ${told} (${sigterm.atExit})`;
    }
    if (sigterm.rerunAfterMs === null)
      return `${exit}; **no worker had it ${time(sigterm.watchedMs)} later** (${sigterm.atExit})`;
    return `${exit}; started elsewhere after ${time(sigterm.rerunAfterMs)} (${sigterm.atExit})`;
  }),
  row("acknowledged jobs missing after `kill -9` of the client", (cells) => lost(cells, "client killed")),
  row("acknowledged jobs missing after `kill -9` of the server", (cells, { home }) =>
    home === "sqlite" ? "has no server" : lost(cells, "server killed"),
  ),
  row("the same, the server as installed", (cells, { home }) =>
    home === "redis" ? lost(cells, "server killed, as installed") : home === "sqlite" ? "has no server" : "the same",
  ),
  row("loop blocked for 40 s, at defaults", ({ blocked }) => twice(blocked?.default)),
  row("loop blocked for 40 s, at its fastest settings", ({ blocked }) => twice(blocked?.fastest)),
];

export const speeds: readonly Row[] = [
  rate("drained per second, concurrency 50, else at defaults", "drainDefault"),
  rate("drained per second, as documented for throughput", "drainThroughput"),
  rate("added per second, one after the other", "addsOneByOne"),
  rate("added per second, 50 in flight", "addsFiftyInFlight"),
  row("pickup by another process, median, at defaults", ({ speed }) => pickup(speed?.pickupDefaultMs)),
  row("pickup by another process, median, at its fastest settings", ({ speed }) => pickup(speed?.pickupFastestMs)),
];

function killed(title: string, mode: "default" | "fastest"): Row {
  return row(title, ({ killToRerun }, { quoted }) => {
    const quote = quoted[mode];
    if (quote) return `_${quote.text}_ (quoted)`;
    const measured = killToRerun?.[mode];
    return measured && times(measured);
  });
}

/** Said in each cell that would have taken as long as the quoted lock, for each death. */
function pretended(found: { readonly pretended: boolean }, { quoted }: Contender, when = ""): string {
  return found.pretended ? ` (its lock made ${quoted.fastest?.text ?? "some time"} older${when})` : "";
}

function lost({ kept }: Cells, what: Kept["what"]): string | undefined {
  const found = kept?.find((each) => each.what === what);
  if (!found) return undefined;
  const { missing, acknowledged } = found;
  return `${missing === 0 ? "0" : `**${count(missing)}**`} of ${count(acknowledged)}`;
}

function twice(blocked: Blocked | undefined): string | undefined {
  if (!blocked) return undefined;
  if (blocked.secondAfterMs === null) return `run once (${blocked.end})`;
  return `**run ${blocked.starts} times**, again after ${time(blocked.secondAfterMs)} (${blocked.end})`;
}

/** With the ratio to ours on the same store. */
function rate(title: string, name: keyof Speed): Row {
  return {
    title,
    cell(contender, { cells }) {
      const value = cells[contender.id]?.speed?.[name];
      if (value === undefined) return NOT_MEASURED;
      const ours = cells[`outlive-${contender.home}`]?.speed?.[name];
      if (contender.package === null || ours === undefined) return count(value);
      return `${count(value)} (${ratio(value, ours)})`;
    },
  };
}

function pickup(ms: number | undefined): string | undefined {
  return ms === undefined ? undefined : time(ms);
}
