// docs/scoreboard.md and its pictures as pure functions of a results file.
import { afterDeath, NOT_MEASURED, type Row, speeds } from "./cells.ts";
import { type Contender, contenders } from "./contenders.ts";
import { type Bar, svgOf } from "./picture.ts";
import { commitsOf, type Results } from "./results.ts";
import { count, median, time } from "./wording.ts";

export function documentOf(results: Results): string {
  return `${[
    opening(results),
    pictures(),
    `## After a death\n\n${matrix(afterDeath, results)}\n\n${howItWasPlayed()}`,
    `## Speed\n\n${matrix(speeds, results)}\n\n${howFast()}`,
    settings(results),
    quotes(),
    better(),
    again(results),
  ].join("\n\n")}\n`;
}

export function picturesOf(results: Results): Readonly<Record<string, string>> {
  return {
    "kill-to-rerun.svg": svgOf({
      title: "From kill -9 of a worker to the rerun of its job",
      subtitle: "At default settings, median, logarithmic scale. Dashed: quoted from its source, not measured.",
      scale: "log",
      ticks: [
        [10, "10 ms"],
        [100, "0.1 s"],
        [1_000, "1 s"],
        [10_000, "10 s"],
        [60_000, "1 min"],
        [600_000, "10 min"],
        [3_600_000, "1 h"],
        [36_000_000, "10 h"],
      ],
      bars: contenders.flatMap((each) => killBar(each, results)),
    }),
    "throughput.svg": throughput(results),
  };
}

function opening({ date, machine, nodes, servers, versions, absent, apart = [], notes = [] }: Results): string {
  const commits = commitsOf(
    versions,
    contenders.map(({ id }) => id),
  );
  const outlive =
    commits.length > 0 ? `Outlive at ${commits.join(" and ")}` : "which commit of Outlive was not recorded";
  return `# Scoreboard

What happens to a job when something dies, and how fast jobs go, for Outlive and four other job queues for Node. \`npm run scoreboard\`
made this page: it starts the servers, plays every experiment with every contender${apart.length === 0 ? " in one run" : ""}, with real processes that are really
killed, and writes the page from what it found.

Run on ${date}, ${machine}; ${servers.join(", ")}; ${nodes}; ${outlive}. The figures of
another machine will differ, most of all the speeds; what a contender does after a death should not. **Bold** is what should make one look. _Italics, "quoted"_: not measured, because no run
can wait that long, but taken from the contender's source ([Quoted](#quoted)). "${NOT_MEASURED}" means just that. The raw results are in [results.json](scoreboard/results.json).${absentees(absent)}${apart.map((line) => `\n\nNot of the same run: ${line}.`).join("")}${notes.map((line) => `\n\n${line}`).join("")}`;
}

function absentees(absent: Results["absent"]): string {
  return Object.entries(absent)
    .map(([id, reason]) => `\n\n**${contenders.find((each) => each.id === id)?.name ?? id} was not run:** ${reason}.`)
    .join("");
}

function pictures(): string {
  return `![From kill -9 of a worker to the rerun of its job, at default settings](scoreboard/kill-to-rerun.svg)

![No-op jobs drained per second](scoreboard/throughput.svg)`;
}

function matrix(rows: readonly Row[], results: Results): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`;
  return [
    line(["", ...contenders.map(({ id, name }) => `${name} ${versionOf(id, results)}`.trim())]),
    line(["---", ...contenders.map(() => "---")]),
    ...rows.map((row) => line([row.title, ...contenders.map((each) => row.cell(each, results))])),
  ].join("\n");
}

function versionOf(id: string, { versions }: Results): string {
  const version = versions[id] ?? "";
  return /^\d/.test(version) ? version : "";
}

function howItWasPlayed(): string {
  return `How it was played (one file each in \`proof/scoreboard/experiments/\`; every contender's adapter is one file in \`proof/scoreboard/peers/\`):

- **kill**: two workers, one runs a job, the other is idle. The first gets SIGKILL after 0 to 1 s (at a peer's defaults 0 to 30 s); the clock runs from the
  signal to the start of the handler in the other. Outlive is killed 15 times one after the other, a peer, which mostly waits, 5 times side by side; all contenders at the
  same time. pg-boss counts from the last heartbeat and plainjob from the scheduled time, so a part of their time has passed at the kill.
- **zombie**, at the fastest settings: the worker that runs the job gets SIGSTOP. When the other worker runs the job, the first gets SIGCONT; its
  handler writes progress and returns, while the new owner is still at work.
- **a job that kills its worker**, at the fastest settings: one worker at concurrency 20 holds it and 19 innocents, which need 4 s; it kills the process
  after 1.5 s, so that each death hits all twenty; innocents of a second would get through. The worker is started again each time, until all have ended or for 30 deaths or
  160 s. How many deaths a job may have is each one's own default.
- **"its lock made older"**: the experiment would wait for the quoted time, once for a zombie and once for each death of a job that kills its worker. Instead the lock's
  time in the table was set back by that much, in SQL and from outside; what is done with an expired lock is the contender's own. In use these cells take that long.
- **SIGTERM**, at defaults, with the shutdown that each one's documentation shows, and a handler that looks at no signal. What the store said of the
  job a second after the exit is in brackets.
- **acknowledged jobs**: one process adds without a pause for a second, then SIGKILL; each job whose add had resolved is looked up afterwards. For the
  server's row the server itself gets SIGKILL and is started again. That is the death of a process, not a power loss.
- **loop blocked**: the handler blocks its event loop for 40 s, another worker is idle; watched for 70 s.${remarks("afterDeath")}`;
}

function howFast(): string {
  return `In brackets: the ratio to Outlive on the same store. These are short runs on a shared machine, in one process each; one
process adds or works. Each figure is the median of three rounds, which the contenders play in turns. A drain is of 20,000 jobs or 4 s, whichever ends first, and counts the jobs that
have ended in the store; adds are counted for a second.${remarks("speed")}

They do not promise the same, which is a good part of their differences:

${contenders.map(({ name, durability }) => `- **${name}**: ${durability}.`).join("\n")}`;
}

/** What a cell of that table has no room for. */
function remarks(table: "afterDeath" | "speed"): string {
  return contenders
    .flatMap(({ name, remarks: { [table]: remark } = {} }) => (remark ? [`\n\n**${name}:** ${remark}`] : []))
    .join("");
}

function settings(results: Results): string {
  const rows = contenders.map(
    ({ id, name, settings: { fastest, throughput: many } }) =>
      `| ${`${name} ${versionOf(id, results)}`.trim()} | ${fastest} | ${many} |`,
  );
  return `## Settings

Everything that is not in this table is as installed, but for the logs of those that write any, which are off. "Fastest" is the least value that a contender's options allow; where they name
none, or it would be a trap, the value is ours, and its row says why. PostgreSQL: \`initdb\`'s defaults with \`max_connections=500\`. Redis: as BullMQ's guide "Going to
production" says (\`appendonly yes\`, \`appendfsync everysec\`, \`maxmemory-policy noeviction\`), and without any setting where the row says "as installed".

| | fastest | throughput |
| --- | --- | --- |
${rows.join("\n")}`;
}

function quotes(): string {
  const lines = contenders.flatMap(({ name, quoted }) =>
    Object.entries(quoted).map(([mode, { text, source }]) => `- **${name}**, ${mode}: ${text}: ${source}.`),
  );
  return `## Quoted\n\n${lines.join("\n")}`;
}

function better(): string {
  const sections = contenders
    .filter(({ better: facts }) => facts.length > 0)
    .map(({ name, better: facts }) => `**${name}**\n\n${facts.map((fact) => `- ${fact}`).join("\n")}`);
  return `## What they do better\n\n${sections.join("\n\n")}`;
}

function again({ broken }: Results): string {
  const failures =
    broken.length === 0
      ? ""
      : `\n\nExperiments that broke in this run:\n\n${broken.map((line) => `- ${line}`).join("\n")}`;
  return `## Run it yourself

\`\`\`sh
npm run scoreboard                                             # a quarter of an hour; needs npm and, for Redis and PostgreSQL, root on a Debian or both installed
npm run scoreboard -- --render docs/scoreboard/results.json    # the page again from the raw results
\`\`\`

The contenders are pinned in \`proof/scoreboard/package.json\` and its lock file, and the run stops if something else is installed. If you think that a peer
is configured unfairly, its settings are in one file; a change that is better for it is welcome.${failures}`;
}

function killBar(contender: Contender, { cells }: Results): readonly Bar[] {
  const quote = contender.quoted.default;
  const label = contender.name;
  if (quote) return [{ label, value: quote.ms, text: `${quote.text} (quoted)`, look: "quoted" }];
  const measured = cells[contender.id]?.killToRerun?.default;
  if (!measured) return [];
  const value = median(measured);
  return [{ label, value, text: time(value), look: contender.package === null ? "ours" : "theirs" }];
}

function throughput({ cells }: Results): string {
  const bars = contenders.flatMap((contender): readonly Bar[] => {
    const value = cells[contender.id]?.speed?.drainThroughput;
    if (value === undefined) return [];
    return [{ label: contender.name, value, text: count(value), look: contender.package === null ? "ours" : "theirs" }];
  });
  const most = Math.max(1, ...bars.map(({ value }) => value));
  const step = 10 ** Math.floor(Math.log10(most)) / (most / 10 ** Math.floor(Math.log10(most)) < 3 ? 2 : 1);
  const ticks = Array.from({ length: Math.ceil(most / step) + 1 }, (_, n): [number, string] => [
    n * step,
    count(n * step),
  ]);
  return svgOf({
    title: "No-op jobs drained per second by one process",
    subtitle:
      "Concurrency 50 (pg-boss: 4 × 50), each as documented for throughput. What is durable when differs: see the page.",
    scale: "linear",
    ticks: ticks.length > 9 ? ticks.filter((_, n) => n % 2 === 0) : ticks,
    bars,
  });
}
