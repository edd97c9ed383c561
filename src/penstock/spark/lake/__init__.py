"""An archive on disk: a folder with one Delta table per topic, which every engine that knows Delta can read.

    PATH/orders/_delta_log/00000000000000000007.json     a commit: files added, and how far each partition is archived
    PATH/orders/date=2026-01-31/part-....parquet         records of that UTC day

Executors write Parquet files (`parquet_files.py`); the driver commits them (`topic_table.py`). A file that no commit
names is not part of the table, even if it was written completely.
"""
