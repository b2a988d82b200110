// Collections as the port wants them. Each verb is one script, or one for each bounded piece: a piece of parts is kept whole or not at all, and the
// answer of each part is that of its own piece.
import {
  type AnnounceAnswer,
  announcedBefore,
  COLLECTION_STATES,
  type CollectionDraft,
  type CollectionRow,
  type CollectionState,
  decodeTransitions,
  type KnownPlace,
  type ParkedMessage,
  type ParkedRow,
  type Part,
  partIsThere,
  type PartPlace,
  PUT_ANSWERS,
  type PutAnswer,
} from "../../job/collections.ts";
import {
  type CollectionFilter,
  type Collections,
  listedRanges,
  type ParkedFilter,
  STATE_CODE,
} from "../collections.ts";
import type { Connection } from "./connection.ts";
import { assertDeclared, checked, draftsArgs, entryArgs, fieldsOf, unchecked } from "./encoding.ts";

/** How much one script does: 200 parts took 3 ms of the server. */
const AT_ONCE = 200;
const READ_AT_ONCE = 100;

export function collections(connection: Connection): Collections {
  return {
    open: (draft) => open(connection, draft),
    announce: (id, expected) => announce(connection, id, expected),
    known: (places) => known(connection, places),
    put: (parts) => putParts(connection, parts),
    async get(ids) {
      const found: CollectionRow[] = [];
      for (const piece of inPieces(ids, READ_AT_ONCE)) {
        const list = await connection.eval("getCollections", [String(piece.length), ...piece]);
        found.push(...(list as unknown as string[][]).map(collectionRow));
      }
      return found;
    },
    list: (filter, limit, after) => listAll(connection, filter, limit, after),
    async counts() {
      const list = (await connection.eval("countCollections")) as unknown as [string, string, string][];
      return list
        .map(([kind, state, count]) => ({ kind, state: COLLECTION_STATES[Number(state)]!, count: Number(count) }))
        .toSorted((a, b) => (a.kind < b.kind ? -1 : a.kind > b.kind ? 1 : STATE_CODE[a.state] - STATE_CODE[b.state]));
    },
    parts: (id, series, after, limit) => partsOf(connection, id, series, after, limit),
    async missing(id, series, limit) {
      const rows = (await connection.eval("missing", [id, series, String(limit)])) as unknown as [string, string][];
      const ranges = rows.map(([first, last]) => ({ first: Number(first), last: Number(last) }));
      return listedRanges(ranges, limit);
    },
    async due(limit) {
      const [now, ids] = (await connection.eval("dueCollections", [String(limit)])) as [string, string[]];
      return { ids, now: Number(now) };
    },
    async step({ collection, from, to, why, ifDue, follow }, entry) {
      const codes = from.map((state) => STATE_CODE[state]).join("");
      const step = [collection, codes, String(STATE_CODE[to]), why ?? "", ifDue ? "1" : "0", ...draftsArgs(follow)];
      const reply = await connection.eval("stepCollection", [...entryArgs(entry), ...step]);
      assertDeclared(reply);
      return reply === 1;
    },
    async park(messages) {
      for (const piece of inPieces(messages, AT_ONCE)) {
        const args = piece.flatMap((message) => [message.id, message.collection ?? "", parkedBody(message)]);
        await connection.eval("park", [String(piece.length), ...args]);
      }
    },
    parked: (filter, limit, after) => parked(connection, filter, limit, after),
    async unpark(ids, entry) {
      for (const piece of inPieces(ids, AT_ONCE))
        await connection.eval("unpark", [...entryArgs(entry), String(piece.length), ...piece]);
    },
    remove: async (id, limit) => (await connection.eval("removeCollection", [id, String(limit)])) === 1,
  };
}

function* inPieces<T>(items: readonly T[], size: number): Generator<readonly T[]> {
  for (let from = 0; from < items.length; from += size) yield items.slice(from, from + size);
}

const orNull = (text: string | undefined): number | null => (text === undefined || text === "" ? null : Number(text));

async function open(connection: Connection, draft: CollectionDraft): ReturnType<Collections["open"]> {
  const { id, kind, input, series, idleMs, totalMs, keepMs, follow } = draft;
  const state: CollectionState = follow.length > 0 ? "requested" : "collecting";
  const reply = await connection.eval("openCollection", [
    id,
    kind,
    checked(input, id),
    ...[idleMs, totalMs, keepMs, STATE_CODE[state], series.length].map(String),
    ...series.flatMap(({ name, expected }) => [name, expected === null ? "" : String(expected)]),
    ...draftsArgs(follow),
  ]);
  assertDeclared(reply);
  const [created, flat] = reply as unknown as [number, string[]];
  return { created: created === 1, collection: collectionRow(flat) };
}

async function announce(
  connection: Connection,
  id: string,
  expected: Readonly<Record<string, number>>,
): Promise<AnnounceAnswer> {
  const series = Object.entries(expected);
  const args = [id, String(series.length), ...series.flatMap(([name, count]) => [name, String(count)])];
  const [is, name, number] = (await connection.eval("announce", args)) as [string, string | number, string];
  switch (is) {
    case "unknown":
      return { is, series: name === "" ? null : String(name) };
    case "closed":
      return { is, state: COLLECTION_STATES[Number(name)]! };
    case "announced before":
      return { is: "contradicts", series: String(name), why: announcedBefore(Number(number)) };
    case "beyond":
      return { is: "contradicts", series: String(name), why: partIsThere(Number(number)) };
    default:
      return { is: "announced" };
  }
}

async function putParts(connection: Connection, parts: readonly Part[]): Promise<PutAnswer[]> {
  const answers: PutAnswer[] = [];
  for (const piece of inPieces(parts, AT_ONCE)) {
    const args = piece.flatMap(({ collection, series, ordinal, bytes, sha256, blob }) => [
      collection,
      series,
      String(ordinal),
      String(bytes),
      sha256,
      blob,
    ]);
    const codes = (await connection.eval("putParts", [String(piece.length), ...args])) as number[];
    answers.push(...codes.map((code) => PUT_ANSWERS[code]!));
  }
  return answers;
}

async function known(connection: Connection, places: readonly PartPlace[]): Promise<(KnownPlace | null)[]> {
  const found: (KnownPlace | null)[] = [];
  for (const piece of inPieces(places, AT_ONCE)) {
    const args = piece.flatMap(({ collection, series, ordinal }) => [collection, series, String(ordinal)]);
    const list = await connection.eval("knownParts", [String(piece.length), ...args]);
    for (const one of list as unknown as ("" | [string, number, number, string, string])[]) {
      if (one === "") {
        found.push(null);
        continue;
      }
      const [kind, state, hasSeries, expected, sha256] = one;
      found.push({
        kind,
        state: COLLECTION_STATES[state]!,
        series: hasSeries === 1 ? { expected: orNull(expected) } : null,
        sha256: sha256 === "" ? null : sha256,
      });
    }
  }
  return found;
}

// ---- reads

export function collectionRow(flat: readonly string[]): CollectionRow {
  const c = fieldsOf(flat) as Readonly<Record<string, string | undefined>>;
  const id = c["id"]!;
  const input = unchecked(c["input"] ?? "", id);
  return {
    id,
    kind: c["kindName"]!,
    state: COLLECTION_STATES[Number(c["state"])]!,
    input: input.text ?? "null",
    series: Array.from({ length: Number(c["count"]) }, (_, p) => ({
      name: c[`n${p}`]!,
      expected: orNull(c[`e${p}`]),
      have: Number(c[`h${p}`]),
      bytes: Number(c[`y${p}`]),
    })),
    idleMs: Number(c["idle"]),
    totalMs: Number(c["total"]),
    keepMs: Number(c["keep"]),
    createdAt: Number(c["created"]),
    activeAt: Number(c["active"]),
    transitions: decodeTransitions(c["transitions"]!),
    why: c["why"] ?? null,
    parked: Number(c["parked"]),
    ...(!input.intact && { corrupt: true as const }),
  };
}

async function listAll(
  connection: Connection,
  { kind, state }: CollectionFilter,
  limit: number,
  after: string | null,
): Promise<readonly CollectionRow[]> {
  const filter = [kind ?? "", state === undefined ? "" : String(STATE_CODE[state]), ""];
  const found: CollectionRow[] = [];
  let place = ["", after ?? ""];
  while (found.length < limit) {
    const wanted = String(Math.min(limit - found.length, READ_AT_ONCE));
    const reply = await connection.eval("listCollections", [...place, ...filter, wanted]);
    const [list, next] = reply as unknown as [string[][], string];
    found.push(...list.map(collectionRow));
    if (next === "") break;
    place = [next, ""];
  }
  return found;
}

async function partsOf(
  connection: Connection,
  collection: string,
  series: string,
  after: number,
  limit: number,
): Promise<Part[]> {
  const found: Part[] = [];
  for (let last = after; found.length < limit;) {
    const wanted = Math.min(limit - found.length, AT_ONCE);
    const list = await connection.eval("parts", [collection, series, String(last), String(wanted)]);
    for (const [ordinal, packed] of list as unknown as [string, string][]) {
      const [, bytes, sha256, blob] = /^(\d+)\|([^|]*)\|(.*)$/s.exec(packed)!;
      found.push({
        collection,
        series,
        ordinal: Number(ordinal),
        blob: blob!,
        bytes: Number(bytes),
        sha256: sha256!,
      });
    }
    if ((list as readonly unknown[]).length < wanted) break;
    last = found.at(-1)!.ordinal;
  }
  return found;
}

// ---- parked messages

function parkedBody({ kind, collection, series, ordinal, reason, blob, bytes }: ParkedMessage): string {
  return JSON.stringify({ kind, collection, series, ordinal, reason, blob, bytes });
}

async function parked(
  connection: Connection,
  { kind, collection }: ParkedFilter,
  limit: number,
  after: string | null,
): Promise<readonly ParkedRow[]> {
  const found: ParkedRow[] = [];
  for (let from = after ?? ""; found.length < limit;) {
    const reply = await connection.eval("parked", [collection ?? "", from, String(READ_AT_ONCE)]);
    const [list, next] = reply as unknown as [[string, string][], string];
    for (const [id, packed] of list) {
      const [, at, body] = /^(\d+) (.*)$/s.exec(packed)!;
      const message = JSON.parse(body!) as Omit<ParkedMessage, "id">;
      if (kind === undefined || message.kind === kind) found.push({ id, ...message, at: Number(at) });
    }
    if (next === "" && list.length < READ_AT_ONCE) break;
    from = next === "" ? list.at(-1)![0] : next;
  }
  return found.slice(0, limit);
}
