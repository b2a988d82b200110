// The tables of a store as the command line and deploy scripts bring them up to date, list them and take them back.

export interface MigrationInfo {
  readonly number: number;
  readonly name: string;
  readonly applied: boolean;
  /** In ms of the store's clock; null: not applied, or before this was kept. Absent: this store does not keep it. */
  readonly appliedAt?: number | null;
  /** What taking it back drops. Absent: this store can't take it back. */
  readonly drops?: string;
  /** Of the released migration. */
  readonly checksum: string;
  /** Of the one that was applied; null: it is not kept. */
  readonly storedChecksum: string | null;
}

export interface StoreMigrations {
  /** Where the tables are, for people: "Schema outlive", "sqlite:./jobs.db". */
  readonly title: string;
  /** The same for programs. */
  readonly place: Readonly<Record<string, string>>;
  /** What else should be known about them. */
  readonly note?: string;
  /** Writes nothing. */
  list(): Promise<readonly MigrationInfo[]>;
  /** Brings the store up to migration `to` (default: the latest) and returns the numbers of what was done. */
  up(to?: number): Promise<readonly number[]>;
  /** Takes back everything above `to` (default: the latest one only). Refuses while unfinished jobs exist unless forced. */
  down(options: { readonly to?: number; readonly force?: boolean }): Promise<readonly number[]>;
}

/** What to print. */
export interface PrintedSql {
  /** Migrations from..to, up or down. Default: all, up. */
  readonly migrations?: { readonly from: number; readonly to: number; readonly direction: "up" | "down" };
  /** The schedule for pg_cron. */
  readonly cron?: boolean;
  /** The roles and their grants. */
  readonly roles?: boolean;
}
