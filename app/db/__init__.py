"""The SQL database, the only truth: sessions, tables, repositories, blobs and the fenced queue."""
