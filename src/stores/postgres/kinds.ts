// The table of kinds: settings that every process and every decision reads, and the numbers that stand for the names.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { KindSettings } from "../../job/job.ts";
import { type KindColumns, kindSettings, toStored } from "../rows.ts";
import { list, texts } from "./statements.ts";
import type { Session } from "./statements.ts";

const COLUMNS =
  "name, timeout_ms, max_runtime_ms, grace_ms, max_errors, max_timeouts, max_crashes, backoff_type, backoff_base_ms, backoff_max_ms, backoff_jitter, on_crash";

const DECLARE = `INSERT INTO outlive.kinds (${COLUMNS})
  SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[], $6::int[], $7::int[], $8::text[], $9::bigint[], $10::bigint[],
    $11::float8[], $12::text[]) AS k (${COLUMNS}) ORDER BY name
  ON CONFLICT (name) DO UPDATE SET (${COLUMNS}) = ROW (${COLUMNS.replaceAll(/\w+/g, "excluded.$&")})
  WHERE ROW (${COLUMNS.replaceAll(/\w+/g, "kinds.$&")}) IS DISTINCT FROM ROW (${COLUMNS.replaceAll(/\w+/g, "excluded.$&")})`;

export class Kinds {
  readonly #ids = new Map<string, number>();

  async declare(session: Session, kinds: readonly KindSettings[]): Promise<void> {
    // One statement may not touch a row twice: of a name that is said twice the last counts.
    const last = [...new Map(kinds.map((kind) => [kind.name, kind])).values()];
    this.forget(last.map(({ name }) => name));
    await session.run(DECLARE, [
      texts(last.map(({ name }) => name)),
      list(last.map(({ timeoutMs }) => timeoutMs)),
      list(last.map(({ maxRuntimeMs }) => maxRuntimeMs)),
      list(last.map(({ graceMs }) => graceMs)),
      list(last.map(({ limits }) => limits.errors)),
      list(last.map(({ limits }) => limits.timeouts)),
      list(last.map(({ limits }) => limits.crashes)),
      texts(last.map(({ backoff }) => backoff.type)),
      list(last.map(({ backoff }) => backoff.baseMs)),
      list(last.map(({ backoff }) => backoff.maxMs)),
      list(last.map(({ backoff }) => backoff.jitter)),
      texts(last.map(({ onCrash }) => toStored(onCrash))),
    ]);
  }

  /** The number of a declared kind, if it has been looked up. */
  idOf(name: string): number | undefined {
    return this.#ids.get(name);
  }

  /** Their numbers are looked up again: a restore may have given them to other kinds. */
  forget(names: Iterable<string>): void {
    for (const name of names) this.#ids.delete(name);
  }

  /** Looks up what is not known yet. What nobody has declared stays unknown, and is asked for again next time. */
  async learn(session: Session, names: Iterable<string>): Promise<void> {
    const unknown = [...new Set(names)].filter((name) => !this.#ids.has(name));
    if (unknown.length === 0) return;
    const rows = await session.rows<{ id: number; name: string }>(
      "SELECT id, name FROM outlive.kinds WHERE name = ANY ($1::text[])",
      [texts(unknown)],
    );
    for (const { id, name } of rows) this.#ids.set(name, id);
  }

  /** As `learn`, but what nobody has declared is refused. */
  async demand(session: Session, names: Iterable<string>): Promise<void> {
    const all = [...names];
    await this.learn(session, all);
    const unknown = all.find((name) => !this.#ids.has(name));
    if (unknown !== undefined) throw undeclared(unknown);
  }

  async settings(session: Session, ids: Iterable<number>): Promise<ReadonlyMap<number, KindSettings>> {
    const rows = await session.rows<KindColumns>("SELECT * FROM outlive.kinds WHERE id = ANY ($1::int[])", [
      list([...new Set(ids)]),
    ]);
    return new Map(rows.map((row) => [row.id, kindSettings(row)]));
  }
}

function undeclared(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.kindUnknown,
    `The kind ${JSON.stringify(kind)} was never declared in this store.`,
    "Pass its job to `open({ jobs })` or to the client's `jobs`, so that its settings are known before its first job.",
    { kind },
  );
}
