// `outlive collections`, `collection ID`, `put`, `abandon ID` and `parked`: what becomes of collections, and of messages that could not become parts.
import { readFileSync } from "node:fs";
import { Option } from "commander";
import { connect } from "../../engine/connect.ts";
import { isCollection } from "../../engine/collection.ts";
import type { CollectionInfo, ParkedMessage } from "../../index.ts";
import { COLLECTION_STATES, type CollectionState } from "../../job/collections.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { humanBytes } from "../../job/text.ts";
import { byOf, wholeNumber, withBy } from "../context.ts";
import type { Register } from "../main.ts";
import { allJobs } from "../supervisor/job-modules.ts";
import { ExitCode, grid, type Ink, type Terminal } from "../terminal.ts";
import { ago, oneLine, orDash, printable, stamp, thousands } from "../words.ts";

export const collectionsCommand: Register = (program, run) => {
  program
    .command("collections")
    .description("collections of numbered messages, newest first")
    .option("--kind <kind>", "only of this kind")
    .addOption(new Option("--state <state>", "only in this state").choices(COLLECTION_STATES))
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <id>", "the last id of the previous page")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ kind?: string; state?: CollectionState; limit: number; after?: string }>();
        const collections = await (await attach()).collections(flags);
        terminal.answer({ collections }, () =>
          collections.length === 0 ? "There are no collections." : table(terminal, collections),
        );
      }),
    );
  program
    .command("collection")
    .argument("<id>", "the collection's id")
    .description("one collection: its parts, what is missing and why, and its transitions")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const info = await (await attach()).collection(id);
        if (!info)
          throw new OutliveError(
            ErrorCode.notFound,
            `There is no collection ${id}.`,
            "Check the id: outlive collections",
            { collection: id },
          );
        terminal.answer(info, () => story(terminal, info).join("\n"));
      }),
    );
  program
    .command("put")
    .argument("<kind>", "the kind of the collection, which a module of `jobs` exports")
    .argument("<id>", "the collection's id")
    .argument("<series>", "the series")
    .argument("<ordinal>", "the number of the part, from 1")
    .argument("<file>", "its bytes, or - to read them from stdin")
    .description("store a part of a collection; repeating it is safe")
    .action(
      run(async ({ terminal, config, mayChange }, command) => {
        const [kind, id, series, ordinal, file] = command.args as [string, string, string, string, string];
        mayChange("put a part");
        const { jobs, store, engine: settings } = await config();
        const all = await allJobs({ base: process.cwd(), patterns: jobs });
        const contract = (all as readonly object[]).filter(isCollection).find(({ name }) => name === kind);
        if (!contract)
          throw new OutliveError(
            ErrorCode.kindUnknown,
            `No module of ${jobs.join(", ")} exports a collection named ${JSON.stringify(kind)}.`,
            "Nothing was stored. Name the modules in `jobs` of the configuration, or in OUTLIVE_JOBS.",
            { kind, globs: jobs },
          );
        await using client = await connect(store, { ...settings, jobs: [contract] });
        const answer = await client.put(contract, id, series, Number(ordinal), contentOf(file));
        terminal.answer({ collection: id, series, ordinal: Number(ordinal), answer }, () => answer);
        return answer === "accepted" || answer === "duplicate" ? ExitCode.ok : ExitCode.failure;
      }),
    );
  withBy(program.command("abandon").argument("<id>", "the collection's id"))
    .option("--cancel", "end it as cancelled instead of abandoned")
    .description("end an incomplete collection; its parts are kept for the kind's `keep`")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const engine = await attach();
        const { cancel } = command.opts<{ cancel?: boolean }>();
        const by = byOf(command);
        const state = cancel === true ? await engine.cancelCollection(id, by) : await engine.abandonCollection(id, by);
        terminal.answer({ collection: id, state }, () => `Collection ${id} is ${state}.`);
      }),
    );
  withBy(program.command("parked").argument("[id]", "only this message"))
    .description("messages that could not become parts, with the reason")
    .option("--kind <kind>", "only for this kind")
    .option("--collection <id>", "only of this collection")
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <id>", "the last id of the previous page")
    .option("--retry", "handle them all again; those that become parts, announcements or jobs are no longer parked")
    .option("--drop", "delete them all with their bodies")
    .action(
      run(async ({ terminal, attach, config, mayChange }, command) => {
        const [only] = command.args;
        const { retry, drop, kind, collection, limit, after } = command.opts<{
          kind?: string;
          collection?: string;
          limit: number;
          after?: string;
          retry?: boolean;
          drop?: boolean;
        }>();
        const engine = await attach();
        const filter = {
          ...(kind !== undefined && { kind }),
          ...(collection !== undefined && { collection }),
          ...(after !== undefined && { after }),
        };
        const changes = retry === true || drop === true;
        // By its id, and what is changed unless a limit was given: through all pages.
        const isWhole = only !== undefined || (changes && command.getOptionValueSource("limit") === "default");
        const parked: ParkedMessage[] = [];
        for (let from = filter; ;) {
          const page = await engine.parked({ ...from, limit: isWhole ? 1_000 : limit });
          parked.push(...page.filter(({ id }) => only === undefined || id === only));
          if (!isWhole || page.length < 1_000 || (only !== undefined && parked.length > 0)) break;
          from = { ...filter, after: page.at(-1)!.id };
        }
        if (only !== undefined && parked.length === 0)
          throw new OutliveError(
            ErrorCode.notFound,
            `There is no parked message ${only}.`,
            "Check the id: outlive parked",
            { id: only },
          );
        if (!changes)
          return terminal.answer({ parked }, () =>
            parked.length === 0 ? "No messages are parked." : parkedTable(terminal, parked),
          );
        mayChange(retry === true ? "handle parked messages again" : "delete parked messages");
        const by = byOf(command);
        const { jobs, store, engine: settings } = await config();
        // Their modules say what an input of a job is, and how large a part may be.
        const kinds = new Set(retry === true ? parked.map((one) => one.kind) : []);
        const known =
          kinds.size === 0
            ? []
            : (await allJobs({ base: process.cwd(), patterns: jobs })).filter((one) => kinds.has(one.name));
        await using client = await connect(store, { ...settings, jobs: known });
        const results: Retried[] = [];
        for (const message of parked) results.push(await handledAgain(client, message, drop === true, by));
        terminal.answer({ results }, () =>
          results.length === 0
            ? "No messages are parked."
            : results.map(({ id, became, why }) => [id, became, ...(why ? [oneLine(why)] : [])].join(" ")).join("\n"),
        );
        return results.every(({ became }) => GONE.has(became)) ? ExitCode.ok : ExitCode.failure;
      }),
    );
};

/** What became of messages that are no longer parked. */
const GONE: ReadonlySet<string> = new Set(["accepted", "duplicate", "closed", "dropped"]);

interface Retried {
  readonly id: string;
  readonly became: string;
  /** Of one that failed. */
  readonly why?: string;
}

/** One that fails must not stop those behind it: it would do so every time. */
async function handledAgain(
  client: Awaited<ReturnType<typeof connect>>,
  message: ParkedMessage,
  drops: boolean,
  by: ReturnType<typeof byOf>,
): Promise<Retried> {
  const { id } = message;
  try {
    if (!drops) return { id, became: await client.retryParked(message, by) };
    await client.dropParked(message, by);
    return { id, became: "dropped" };
  } catch (thrown) {
    return { id, became: "failed", why: (thrown as Error).message };
  }
}

const INKS: Readonly<Record<CollectionState, Ink>> = {
  requested: "cyan",
  collecting: "cyan",
  complete: "green",
  notified: "green",
  abandoned: "red",
  cancelled: "yellow",
};

function contentOf(file: string): Buffer {
  try {
    return readFileSync(file === "-" ? 0 : file);
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.fileUnreadable,
      `${file} can't be read: ${(thrown as Error).message}`,
      "Nothing was stored. Check the path; - reads from stdin.",
      { file },
      { cause: thrown },
    );
  }
}

function table(terminal: Terminal, collections: readonly CollectionInfo[]): string {
  const columns = [
    { title: "ID", shrinkTo: 12 },
    { title: "KIND", shrinkTo: 8 },
    { title: "STATE" },
    { title: "PARTS", align: "right" as const },
    { title: "PARKED", align: "right" as const },
    { title: "ACTIVE", align: "right" as const },
  ];
  const rows = collections.map(({ id, kind, state, series, parked, lastActivity }) => {
    const all = Object.values(series);
    const have = all.reduce((sum, one) => sum + one.have, 0);
    const expected = all.every((one) => one.expected !== null)
      ? thousands(all.reduce((sum, one) => sum + one.expected!, 0))
      : "?";
    return [
      id,
      kind,
      { text: state, ink: INKS[state] },
      `${thousands(have)}/${expected}`,
      String(parked.length),
      ago(Date.now() - lastActivity),
    ];
  });
  return grid(terminal, columns, rows).join("\n");
}

function story(terminal: Terminal, info: CollectionInfo): string[] {
  const { id, kind, state, series, parked, transitions, why } = info;
  return [
    `${terminal.style("bold", `Collection ${printable(id)}`)} (${kind}) is ${terminal.style(INKS[state], state)}`,
    ...Object.entries(series).map(
      ([name, { expected, have, missing, bytes: size }]) =>
        `  ${name}: ${thousands(have)} of ${expected === null ? "?" : thousands(expected)}, ${humanBytes(size)}${missing === "" ? "" : `; missing ${oneLine(missing)}`}`,
    ),
    ...parked.map(
      ({ id: message, series: of, ordinal, reason }) =>
        `  parked ${message}: ${orDash(of)} ${orDash(ordinal === null ? null : String(ordinal))}: ${oneLine(reason)}`,
    ),
    `  ${transitions.map((one) => `${one.state} ${stamp(one.at)}`).join(", ")}`,
    `  ${oneLine(why)}`,
    ...(parked.length > 0
      ? [`${terminal.style("cyan", "Next:")} outlive parked --collection ${printable(id)} --retry`]
      : []),
  ];
}

function parkedTable(terminal: Terminal, parked: readonly ParkedMessage[]): string {
  const columns = [
    { title: "ID" },
    { title: "KIND", shrinkTo: 8 },
    { title: "COLLECTION", shrinkTo: 8 },
    { title: "PART" },
    { title: "SINCE", align: "right" as const },
    { title: "REASON", shrinkTo: 20 },
  ];
  const rows = parked.map(({ id, kind, collection, series, ordinal, at, reason }) => [
    id,
    kind,
    orDash(collection),
    series === null ? "-" : `${series} ${ordinal ?? "?"}`,
    ago(Date.now() - at),
    oneLine(reason),
  ]);
  return grid(terminal, columns, rows).join("\n");
}
