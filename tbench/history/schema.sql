-- The tables of a history. docs/history.md says what each column means.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE models (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE datasets (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    version TEXT,
    source TEXT,
    url TEXT,
    "commit" TEXT,
    digest TEXT,
    tasks INTEGER
);

CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    model_id INTEGER REFERENCES models (id),
    dataset_id INTEGER REFERENCES datasets (id),
    agent TEXT,
    fingerprint TEXT NOT NULL,
    plan TEXT NOT NULL,
    imported INTEGER NOT NULL,
    status TEXT,
    stopped TEXT,
    tbench_version TEXT,
    begun_at TEXT,
    ended_at TEXT,
    wall_sec REAL,
    seeds TEXT NOT NULL,
    tasks INTEGER NOT NULL,
    planned INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    solved INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    missing INTEGER NOT NULL,
    other_attempts INTEGER NOT NULL,
    unplanned INTEGER NOT NULL,
    human_touched INTEGER NOT NULL,
    flagged INTEGER NOT NULL,
    weakly_flagged INTEGER NOT NULL,
    unconfirmed INTEGER NOT NULL,
    repaired INTEGER NOT NULL,
    regraded INTEGER NOT NULL,
    remarked INTEGER NOT NULL,
    score REAL,
    score_std REAL,
    score_se REAL,
    per_seed TEXT,
    scored_per_seed TEXT,
    completed TEXT,
    scored_only REAL,
    scored_only_std REAL,
    worst REAL,
    best REAL,
    expected_std REAL,
    solved_rate REAL,
    pass_at_k TEXT,
    pass_hat_k TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER,
    uncounted INTEGER NOT NULL,
    model_sec REAL,
    waiting_sec REAL,
    command_sec REAL,
    verifier_sec REAL,
    sandbox_sec REAL,
    teardown_sec REAL,
    other_sec REAL,
    total_sec REAL,
    queue_sec REAL,
    metrics TEXT NOT NULL,
    outcomes TEXT NOT NULL,
    error_groups TEXT NOT NULL,
    flags TEXT NOT NULL,
    overrides TEXT NOT NULL,
    broken_rules TEXT NOT NULL,
    notes TEXT NOT NULL
);
CREATE INDEX runs_by_begin ON runs (begun_at);
CREATE INDEX runs_by_model ON runs (model_id, score);

CREATE TABLE tasks (
    run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    task TEXT NOT NULL,
    position INTEGER NOT NULL,
    hash TEXT,
    mean_reward REAL,
    scored INTEGER NOT NULL,
    solved INTEGER NOT NULL,
    mean_steps REAL,
    mean_wall_sec REAL,
    PRIMARY KEY (run_id, task)
) WITHOUT ROWID;
CREATE INDEX tasks_by_name ON tasks (task, run_id);
CREATE INDEX tasks_by_hash ON tasks (hash, task);

CREATE TABLE trials (
    run_id INTEGER NOT NULL,
    task TEXT NOT NULL,
    seed INTEGER NOT NULL,
    trial TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    status TEXT NOT NULL,
    reward REAL,
    reward_all_steps REAL,
    error_stage TEXT,
    error TEXT,
    error_blame TEXT,
    outcome TEXT,
    steps INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER,
    uncounted INTEGER NOT NULL,
    wall_sec REAL,
    model_sec REAL,
    agent_sec REAL,
    started_at TEXT,
    finished_at TEXT,
    human_touched INTEGER NOT NULL,
    out_of_memory INTEGER NOT NULL,
    tamper TEXT,
    metrics TEXT,
    PRIMARY KEY (run_id, task, seed),
    FOREIGN KEY (run_id, task) REFERENCES tasks (run_id, task) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE proxies (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    model_id INTEGER REFERENCES models (id),
    measure TEXT NOT NULL,
    score REAL,
    planned INTEGER,
    answered INTEGER,
    metric_revision TEXT,
    data TEXT,
    protocol TEXT,
    begun_at TEXT,
    tbench_version TEXT,
    figures TEXT NOT NULL
);

CREATE TABLE directories (
    path TEXT PRIMARY KEY,
    device INTEGER NOT NULL,
    stamp TEXT NOT NULL,
    problem TEXT
) WITHOUT ROWID;
